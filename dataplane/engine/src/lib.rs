//! The match-action pipeline over batches of frames
