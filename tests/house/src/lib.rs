//! House rules as tests: who may depend on whom
