//! What a transfer sends: a file, or a stream that lasts as long as the test needs.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// What a source reads: a path for `--file`.
pub struct Content {
    path: PathBuf,
    from: From,
}

enum From {
    File(Sent),
    Pipe(Feeder),
}

/// What was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// SHA-256 in hexadecimal.
    pub digest: String,
    /// Number of bytes.
    pub bytes: u64,
}

impl Content {
    /// A file of `size` bytes drawn from `seed`.
    pub fn file(path: &Path, size: usize, seed: u64) -> Result<Self> {
        let digest = write_random(path, size, seed)?;
        let bytes = size as u64;
        Ok(Self {
            path: path.to_owned(),
            from: From::File(Sent { digest, bytes }),
        })
    }

    /// A pipe that is fed, from its first reader on, until [`Content::end`]. The group's rate should have a limit, as there is always
    /// something to send.
    pub fn stream(path: &Path, seed: u64) -> Result<Self> {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).context("making a pipe")?;
        Ok(Self {
            path: path.to_owned(),
            from: From::Pipe(Feeder::start(path.to_owned(), seed)?),
        })
    }

    /// Its file or pipe.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends a stream. Fails if its reader ended first.
    pub fn end(self) -> Result<Sent> {
        match self.from {
            From::File(sent) => Ok(sent),
            From::Pipe(feeder) => feeder.end(),
        }
    }
}

/// A thread that writes into a pipe until it is told to end.
struct Feeder {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Sent>>,
}

impl Feeder {
    fn start(pipe: PathBuf, seed: u64) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let feed = move || {
            let mut pipe = File::create(pipe).context("opening a pipe")?;
            let (mut hasher, mut block) = (Sha256::new(), vec![0; 64 << 10]);
            rand_chacha::ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut block);
            let mut number = 0_u64;
            while !ends.load(Ordering::Relaxed) {
                // No two blocks are the same.
                block[..8].copy_from_slice(&number.to_le_bytes());
                pipe.write_all(&block).context("the source reads no more")?;
                hasher.update(&block);
                number += 1;
            }
            Ok(Sent {
                digest: hex(&hasher.finalize()),
                bytes: number * block.len() as u64,
            })
        };
        let thread = std::thread::Builder::new().name("feeder".into()).spawn(feed)?;
        Ok(Self { is_over, thread })
    }

    fn end(self) -> Result<Sent> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the thread that feeds a stream panicked"))?
    }
}

/// Writes `size` bytes drawn from `seed`; their SHA-256 in hexadecimal.
pub fn write_random(path: &Path, size: usize, seed: u64) -> Result<String> {
    let mut bytes = vec![0; size];
    rand_chacha::ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    File::create(path)?.write_all(&bytes)?;
    Ok(hex(&Sha256::digest(&bytes)))
}

/// What there is of a file that a receiver has not whole yet.
pub fn part(out: &Path) -> Option<PathBuf> {
    let begin = format!("{}.", out.file_name()?.to_str()?);
    let files = std::fs::read_dir(out.parent()?).ok()?.flatten();
    let is_part = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&begin) && name.ends_with(".castnet-part"))
    };
    files.map(|file| file.path()).find(is_part)
}

/// The SHA-256 of a file in hexadecimal.
pub fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
