//! Frame buffers that are allocated once and reused, without locks.
//!
//! A [`PoolBuf`] owns its head and its last four bytes. Replicas may share the bytes in between. A replica therefore
//! costs a copy of two cache lines and a reference count, at any frame length. The last holder frees the body.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use castnet_wire::FrameBuf;

/// Bytes of the private head, see [`FrameBuf::HEAD`].
const HEAD: usize = 128;
/// Bytes of the private trailer of a frame that has a body.
const TRAILER: usize = 4;
/// The longest frame without a body.
const INLINE: usize = HEAD + TRAILER;

/// The private bytes of a frame: all if `length <= INLINE`, else the first [`HEAD`] and the last [`TRAILER`] bytes.
#[repr(align(64))]
struct Node {
    bytes: [u8; INLINE],
    length: usize,
    /// Bytes `HEAD..length - TRAILER` of the frame. `None` if and only if `length <= INLINE`.
    body: Option<Rc<[u8]>>,
}

struct PoolInner {
    // Nodes are boxed so that a frame moves as a pointer.
    #[allow(clippy::vec_box)]
    nodes: RefCell<Vec<Box<Node>>>,
    bodies: RefCell<Vec<Rc<[u8]>>>,
    frame_max: usize,
    buffers: usize,
    exhausted: Cell<u64>,
}

/// Configuration of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// The maximum number of frames including replicas. Each takes 192 bytes.
    pub buffers: usize,
    /// The maximum number of bodies, of `frame_max` bytes each. Replicas of a frame of more than 132 bytes share one.
    pub bodies: usize,
    /// The longest frame in bytes, without the FCS.
    pub frame_max: usize,
}

impl Default for PoolConfig {
    /// 4096 frames with 1024 bodies of up to 9216 bytes: 10 MiB.
    fn default() -> Self {
        Self {
            buffers: 4096,
            bodies: 1024,
            frame_max: 9216,
        }
    }
}

/// Statistics of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// The number of buffers.
    pub buffers: usize,
    /// The number of free buffers.
    pub buffers_free: usize,
    /// The number of free bodies.
    pub bodies_free: usize,
    /// The number of failed allocations of a buffer or body.
    pub exhausted: u64,
}

/// The buffers of one thread. It is a handle; clones refer to the same pool.
#[derive(Clone)]
pub struct Pool(Rc<PoolInner>);

impl Pool {
    /// Allocates all buffers. Nothing is allocated later.
    pub fn new(config: PoolConfig) -> Self {
        let frame_max = config.frame_max.max(INLINE);
        let node = || {
            Box::new(Node {
                bytes: [0; INLINE],
                length: 0,
                body: None,
            })
        };
        let body = || Rc::from(vec![0; frame_max - INLINE]);
        Self(Rc::new(PoolInner {
            nodes: RefCell::new((0..config.buffers).map(|_| node()).collect()),
            bodies: RefCell::new((0..config.bodies).map(|_| body()).collect()),
            frame_max,
            buffers: config.buffers,
            exhausted: Cell::new(0),
        }))
    }

    /// The longest frame in bytes.
    pub fn frame_max(&self) -> usize {
        self.0.frame_max
    }

    /// Statistics of the pool.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            buffers: self.0.buffers,
            buffers_free: self.0.nodes.borrow().len(),
            bodies_free: self.0.bodies.borrow().len(),
            exhausted: self.0.exhausted.get(),
        }
    }

    /// Returns true if a frame of any length can be allocated.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        !self.0.nodes.borrow().is_empty() && !self.0.bodies.borrow().is_empty()
    }

    /// A frame of `length` zero bytes. `None` if no buffer is free or `length` exceeds [`Pool::frame_max`].
    pub fn allocate(&self, length: usize) -> Option<PoolBuf> {
        let mut frame = self.allocate_uninit(length)?;
        if let Some(node) = &mut frame.node {
            node.bytes = [0; INLINE];
            if let Some(body) = node.body.as_mut().and_then(Rc::get_mut) {
                body[..length - INLINE].fill(0);
            }
        }
        Some(frame)
    }

    /// Creates a frame with these bytes. Returns `None` if no buffer is free or it is longer than [`Pool::frame_max`].
    pub fn copy_from(&self, bytes: &[u8]) -> Option<PoolBuf> {
        self.build(bytes.len(), |at, piece| {
            piece.copy_from_slice(&bytes[at..at + piece.len()])
        })
    }

    /// Creates a frame of `length` bytes. `fill` writes each piece of its memory, given the offset in the frame. Returns
    /// `None` as [`Pool::copy_from`].
    pub(crate) fn build(&self, length: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Option<PoolBuf> {
        let mut frame = self.allocate_uninit(length)?;
        if let Some(node) = &mut frame.node {
            match node.body.as_mut().and_then(Rc::get_mut) {
                None => fill(0, &mut node.bytes[..length]),
                Some(body) => {
                    let middle = length - INLINE;
                    fill(0, &mut node.bytes[..HEAD]);
                    fill(HEAD, &mut body[..middle]);
                    fill(HEAD + middle, &mut node.bytes[HEAD..]);
                }
            }
        }
        Some(frame)
    }

    /// Creates a frame from the concatenated bytes of `parts`. Returns `None` as [`Pool::copy_from`].
    pub fn gather(&self, parts: &[&[u8]]) -> Option<PoolBuf> {
        let mut frame = self.allocate_uninit(parts.iter().map(|p| p.len()).sum())?;
        let mut at = 0;
        for part in parts {
            if !frame.write_at(at, part) {
                return None;
            }
            at += part.len();
        }
        Some(frame)
    }

    /// Copies a frame of any representation. Returns `None` as [`Pool::copy_from`].
    pub fn copy_of(&self, frame: &impl FrameBuf) -> Option<PoolBuf> {
        self.gather(&frame.segments())
    }

    #[cold]
    fn count_exhausted<T>(&self) -> Option<T> {
        self.0.exhausted.set(self.0.exhausted.get() + 1);
        None
    }

    #[inline]
    fn take_node(&self) -> Option<Box<Node>> {
        self.0.nodes.borrow_mut().pop().or_else(|| self.count_exhausted())
    }

    #[inline]
    fn take_body(&self) -> Option<Rc<[u8]>> {
        self.0
            .bodies
            .borrow_mut()
            .pop()
            .or_else(|| self.count_exhausted())
    }

    #[inline]
    fn free_body(&self, mut body: Rc<[u8]>) {
        if Rc::get_mut(&mut body).is_some() {
            self.0.bodies.borrow_mut().push(body);
        }
    }

    /// Allocates a frame of `length` bytes with undefined content.
    #[inline]
    fn allocate_uninit(&self, length: usize) -> Option<PoolBuf> {
        if length > self.0.frame_max {
            return None;
        }
        let mut node = self.take_node()?;
        node.length = length;
        if length > INLINE {
            match self.take_body() {
                Some(body) => node.body = Some(body),
                None => {
                    self.0.nodes.borrow_mut().push(node);
                    return None;
                }
            }
        }
        Some(PoolBuf {
            node: Some(node),
            pool: self.clone(),
        })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// A frame in a buffer of a [`Pool`]. Dropping it frees the buffer.
pub struct PoolBuf {
    /// `None` only during drop.
    node: Option<Box<Node>>,
    pool: Pool,
}

impl PoolBuf {
    #[inline]
    fn node(&self) -> &Node {
        match &self.node {
            Some(node) => node,
            None => unreachable!("the node is there until drop"),
        }
    }

    #[inline]
    fn node_mut(&mut self) -> &mut Node {
        match &mut self.node {
            Some(node) => node,
            None => unreachable!("the node is there until drop"),
        }
    }

    /// Creates a frame with its own head and trailer that shares the body. Returns `None` if no buffer is free.
    #[inline]
    pub fn replicate(&self) -> Option<Self> {
        let mut node = self.pool.take_node()?;
        let own = self.node();
        node.bytes = own.bytes;
        node.length = own.length;
        node.body.clone_from(&own.body);
        Some(Self {
            node: Some(node),
            pool: self.pool.clone(),
        })
    }

    /// Writes `bytes` at offset `at`; copies a shared body first. False, with nothing changed, if the bytes would exceed
    /// the frame or no body is free.
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) -> bool {
        let length = self.node().length;
        let Some(end) = at.checked_add(bytes.len()).filter(|&end| end <= length) else {
            return false;
        };
        if length <= INLINE {
            self.node_mut().bytes[at..end].copy_from_slice(bytes);
            return true;
        }
        let body_end = length - TRAILER;
        if at < body_end && end > HEAD && !self.own_body() {
            return false;
        }
        let node = self.node_mut();
        let piece = |from: usize, to: usize| at.clamp(from, to)..end.clamp(from, to);
        let (head, body, trailer) = (piece(0, HEAD), piece(HEAD, body_end), piece(body_end, length));
        node.bytes[head.clone()].copy_from_slice(&bytes[..head.len()]);
        if let Some(own) = node.body.as_mut().and_then(Rc::get_mut) {
            own[body.start - HEAD..body.end - HEAD]
                .copy_from_slice(&bytes[head.len()..head.len() + body.len()]);
        }
        let from = HEAD + (trailer.start - body_end);
        node.bytes[from..from + trailer.len()].copy_from_slice(&bytes[head.len() + body.len()..]);
        true
    }

    /// Makes the body private. Returns false if it is shared and no body is free.
    fn own_body(&mut self) -> bool {
        let length = self.node().length;
        if self
            .node_mut()
            .body
            .as_mut()
            .is_none_or(|body| Rc::get_mut(body).is_some())
        {
            return true;
        }
        let Some(mut fresh) = self.pool.take_body() else {
            return false;
        };
        let node = self.node_mut();
        if let (Some(old), Some(new)) = (&node.body, Rc::get_mut(&mut fresh)) {
            new[..length - INLINE].copy_from_slice(&old[..length - INLINE]);
        }
        node.body = Some(fresh);
        true
    }

    /// The byte at offset `at`.
    pub fn byte(&self, mut at: usize) -> Option<u8> {
        for segment in self.segments() {
            match segment.get(at) {
                Some(byte) => return Some(*byte),
                None => at -= segment.len(),
            }
        }
        None
    }

    /// A copy of all bytes. For tests and slow paths.
    pub fn to_vec(&self) -> Vec<u8> {
        self.segments().concat()
    }
}

impl Drop for PoolBuf {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut node) = self.node.take() {
            if let Some(body) = node.body.take() {
                self.pool.free_body(body);
            }
            self.pool.0.nodes.borrow_mut().push(node);
        }
    }
}

impl FrameBuf for PoolBuf {
    #[inline]
    fn length(&self) -> usize {
        self.node().length
    }

    #[inline]
    fn head(&self) -> &[u8] {
        let node = self.node();
        if node.length > INLINE {
            &node.bytes[..HEAD]
        } else {
            &node.bytes[..node.length]
        }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let node = self.node_mut();
        if node.length > INLINE {
            &mut node.bytes[..HEAD]
        } else {
            &mut node.bytes[..node.length]
        }
    }

    #[inline]
    fn trailer(&self) -> [u8; 4] {
        let node = self.node();
        let end = node.length.min(INLINE);
        match node.bytes[..end].last_chunk() {
            Some(trailer) => *trailer,
            None => [0; 4],
        }
    }

    #[inline]
    fn set_trailer(&mut self, bytes: [u8; 4]) {
        let node = self.node_mut();
        let end = node.length.min(INLINE);
        if let Some(trailer) = node.bytes[..end].last_chunk_mut() {
            *trailer = bytes;
        }
    }

    #[inline]
    fn segments(&self) -> [&[u8]; 3] {
        let node = self.node();
        match &node.body {
            None => [&node.bytes[..node.length.min(INLINE)], &[], &[]],
            Some(body) => [
                &node.bytes[..HEAD],
                &body[..node.length - INLINE],
                &node.bytes[HEAD..],
            ],
        }
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf")
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}
