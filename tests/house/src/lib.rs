//! House rules as tests: who may depend on whom, where `unsafe` may live, and what a room may import. See `tests/`.
