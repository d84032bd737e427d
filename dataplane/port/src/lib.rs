//! Ports: memory links, pcap files, AF_PACKET, and fault injection that wraps any of them
