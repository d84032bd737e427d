//! Headers as words, to be compared eight bytes at a time.

/// The words of `8 W` bytes, of which the first is the lowest.
#[inline(always)]
pub(crate) const fn words<const BYTES: usize, const W: usize>(bytes: &[u8; BYTES]) -> [u64; W] {
    const { assert!(BYTES == 8 * W, "whole words") };
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut words = [0; W];
    let mut i = 0;
    while i < W {
        words[i] = u64::from_le_bytes(chunks[i]);
        i += 1;
    }
    words
}
