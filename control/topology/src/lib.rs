//! The fabric as a graph: switches, hosts, links
