//! castnet/v1: the gRPC API, and the only place where its messages are validated
