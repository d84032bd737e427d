//! Discrete-event network in virtual time whose nodes are the real engine and the real endpoint
