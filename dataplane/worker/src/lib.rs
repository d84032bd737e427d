//! The poll-mode loop on a pinned core, and the dataplane that several of them make
