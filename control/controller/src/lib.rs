//! The controller: group life cycle, desired against reported state, its store
