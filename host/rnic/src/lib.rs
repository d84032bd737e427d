//! What a program on a host talks to: trait Rnic and the software RNIC
