//! The agent: the gRPC server inside a switch
