//! The protocol machines, payload-free: multicast (Cepheus)
