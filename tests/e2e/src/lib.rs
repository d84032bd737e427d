//! End-to-end tests: real processes over real interfaces in network namespaces
