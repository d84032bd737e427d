//! The engine and the endpoint in a simulated network, in virtual time and with seeds.

mod broadcast;
mod collectives;
mod congestion;
mod contract;
mod end_to_end;
mod flow_control;
mod network;
mod rates;
mod relays;
mod seeds;
mod switching;
mod transfers;
