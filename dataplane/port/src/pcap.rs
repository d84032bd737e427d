//! Ports on capture files. Frames are read from one file and written to another.
//!
//! The input format, pcap or pcapng, is detected by its magic number. The output is pcapng if the file name ends in
//! `.pcapng`, otherwise pcap with nanoseconds. This backend is for tests and replay. It locks its output file.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use castnet_wire::{Batch, DropReason, FrameBuf, Nanos};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgBlock, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use crate::memory::mac_from_name;
use crate::pool::{Pool, PoolBuf};
use crate::port::{Port, PortDevice, PortLink, PortStats, Sides, fits};
use crate::sleep::Sleeper;
use crate::spec::OpenError;

/// Input and output files. Clones share the output file.
#[derive(Clone, Debug)]
pub struct PcapSpec {
    /// The file to receive frames from. `None` for a port that receives nothing.
    pub input: Option<PathBuf>,
    /// The file to write sent frames to. `None` for a port that discards them.
    pub output: Option<PathBuf>,
    /// True to receive frames at the pace of the capture. False to receive them as fast as possible.
    pub timed: bool,
    /// The largest packet at layer 3 in bytes.
    pub mtu: usize,
    shared: Arc<Mutex<SharedOutput>>,
}

impl PcapSpec {
    /// Replays as fast as possible, with an MTU that fits any frame of 9000 bytes.
    pub fn new(input: Option<PathBuf>, output: Option<PathBuf>) -> Self {
        Self {
            input,
            output,
            timed: false,
            mtu: 9000,
            shared: Arc::default(),
        }
    }

    /// Opens the files for the thread that owns `pool`.
    ///
    /// # Errors
    /// A file cannot be opened, or is not a capture of Ethernet frames.
    pub fn open(&self, pool: &Pool, sides: Sides) -> Result<PcapPort, OpenError> {
        if let (Some(input), Some(output)) = (&self.input, &self.output)
            && let (Ok(input), Ok(at)) = (std::fs::metadata(input), std::fs::metadata(output))
            && input.is_file()
            && (input.dev(), input.ino()) == (at.dev(), at.ino())
        {
            return Err(OpenError::File {
                path: output.clone(),
                source: io::Error::other("it is the file that frames are received from"),
            });
        }
        let reader = match &self.input {
            Some(path) if sides.receives() => Some(Reader::open(path)?),
            _ => None,
        };
        let name = self
            .input
            .as_ref()
            .or(self.output.as_ref())
            .map_or("pcap".into(), |p| p.display().to_string());
        {
            let mut shared = lock(&self.shared);
            if let (Some(path), None) = (&self.output, &shared.writer) {
                shared.writer = Some(Writer::create(path)?);
            }
            shared.ports += 1;
        }
        let mut port = PcapPort {
            link: PortLink {
                mac: mac_from_name(&name),
                name,
                mtu: self.mtu,
                up: true,
                device: PortDevice::new("pcap"),
            },
            reader,
            timed: self.timed,
            next: None,
            origin: None,
            now: Nanos::ZERO,
            opened: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            scratch: Vec::with_capacity(pool.frame_max()),
            shared: self.shared.clone(),
            pool: pool.clone(),
            stats: PortStats::default(),
        };
        port.read_ahead();
        Ok(port)
    }
}

#[derive(Debug, Default)]
struct SharedOutput {
    writer: Option<Writer>,
    ports: usize,
}

fn lock(shared: &Mutex<SharedOutput>) -> MutexGuard<'_, SharedOutput> {
    // A panic may leave a partly written frame, which readers of the file detect.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Writer {
    Pcap(PcapWriter<BufWriter<File>>),
    PcapNg(PcapNgWriter<BufWriter<File>>),
}

/// Fails if more than frames is lost with what stands at `path`: it is no packet file, and not empty. A device or a pipe is not opened, as that
/// would wait for its other end.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    let mut magic = Vec::new();
    match std::fs::metadata(path) {
        Ok(file) if file.is_file() => File::open(path)?.take(4).read_to_end(&mut magic)?,
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    const CAPTURES: [u32; 3] = [0xA1B2_C3D4, 0xA1B2_3C4D, 0x0A0D_0D0A];
    let word = magic.first_chunk().map(|word| u32::from_be_bytes(*word));
    match word.is_some_and(|word| CAPTURES.contains(&word) || CAPTURES.contains(&word.swap_bytes()))
        || magic.is_empty()
    {
        true => Ok(()),
        false => Err(io::Error::other(
            "it is no packet file, so nothing is written over it",
        )),
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcap(_) => "pcap",
            Self::PcapNg(_) => "pcapng",
        })
    }
}

impl Writer {
    fn create(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::File {
            path: path.into(),
            source,
        };
        check_replaceable(path).map_err(failed)?;
        let file = BufWriter::new(File::create(path).map_err(failed)?);
        let writer = if path.extension().is_some_and(|e| e == "pcapng") {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![InterfaceDescriptionOption::IfTsResol(9)],
            };
            PcapNgWriter::new(file).and_then(|mut w| {
                w.write_block(&interface.into_block())?;
                Ok(Self::PcapNg(w))
            })
        } else {
            let header = PcapHeader {
                datalink: DataLink::ETHERNET,
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::native(),
                ..PcapHeader::default()
            };
            PcapWriter::with_header(file, header).map(Self::Pcap)
        };
        writer.map_err(|e| failed(io::Error::other(e)))
    }

    fn write(&mut self, at: Duration, bytes: &[u8]) -> Result<(), PcapError> {
        let original_len = bytes.len() as u32;
        match self {
            Self::Pcap(writer) => writer.write_packet(&PcapPacket::new(at, original_len, bytes)),
            Self::PcapNg(writer) => writer.write_block(&Block::EnhancedPacket(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: at,
                original_len,
                data: bytes.into(),
                options: Vec::new(),
            })),
        }
        .map(drop)
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Pcap(writer) => writer.into_writer().flush(),
            Self::PcapNg(writer) => writer.into_inner().flush(),
        }
    }
}

enum Reader {
    Pcap(PcapReader<BufReader<File>>),
    /// Includes the timestamp unit of each interface of the section.
    PcapNg(PcapNgReader<BufReader<File>>, Vec<Unit>),
}

/// A pcapng timestamp unit in units per second (option if_tsresol).
#[derive(Clone, Copy, Debug)]
struct Unit(u128);

impl Unit {
    fn of(interface: &InterfaceDescriptionBlock<'_>) -> Self {
        let resolution = interface.options.iter().find_map(|o| match o {
            InterfaceDescriptionOption::IfTsResol(r) => Some(*r),
            _ => None,
        });
        Self(match resolution.unwrap_or(6) {
            r if r & 0x80 == 0 => 10_u128.pow(u32::from(r).min(30)),
            r => 1 << (r & 0x7F),
        })
    }

    fn nanos(self, raw: Duration) -> Nanos {
        // The library interprets each timestamp as nanoseconds.
        let nanos = raw.as_nanos().saturating_mul(1_000_000_000) / self.0.max(1);
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcap(_) => "pcap",
            Self::PcapNg(..) => "pcapng",
        })
    }
}

impl Reader {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |source| OpenError::File {
            path: path.into(),
            source,
        };
        let not = |reason: String| OpenError::NotACapture {
            path: path.into(),
            reason,
        };
        let mut file = File::open(path).map_err(io)?;
        let mut magic = [0; 4];
        file.read_exact(&mut magic)
            .map_err(|_| not("shorter than a file header".into()))?;
        file.rewind().map_err(io)?;
        let file = BufReader::new(file);
        if magic == [0x0A, 0x0D, 0x0D, 0x0A] {
            let reader = PcapNgReader::new(file).map_err(|e| not(e.to_string()))?;
            return Ok(Self::PcapNg(reader, Vec::new()));
        }
        let reader = PcapReader::new(file).map_err(|e| not(e.to_string()))?;
        match reader.header().datalink {
            DataLink::ETHERNET => Ok(Self::Pcap(reader)),
            other => Err(not(format!("link type {other:?}"))),
        }
    }

    /// Passes capture time, wire length and bytes of the next frame to `take`. `None` at the end or at a read error.
    fn next<T>(&mut self, take: impl FnOnce(Nanos, u32, &[u8]) -> T) -> Option<T> {
        match self {
            Self::Pcap(reader) => {
                let packet = reader.next_packet()?.ok()?;
                let at = Nanos(u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX));
                Some(take(at, packet.orig_len, &packet.data))
            }
            Self::PcapNg(reader, units) => loop {
                match reader.next_block()?.ok()? {
                    Block::SectionHeader(_) => units.clear(),
                    Block::InterfaceDescription(interface) => units.push(Unit::of(&interface)),
                    Block::EnhancedPacket(p) => {
                        let unit = units.get(p.interface_id as usize).copied();
                        let at = unit.unwrap_or(Unit(1_000_000)).nanos(p.timestamp);
                        return Some(take(at, p.original_len, &p.data));
                    }
                    Block::SimplePacket(p) => {
                        let bytes = p.data.get(..p.original_len as usize).unwrap_or(&p.data);
                        return Some(take(Nanos::ZERO, p.original_len, bytes));
                    }
                    _ => {}
                }
            },
        }
    }
}

/// A port on capture files.
#[derive(Debug)]
pub struct PcapPort {
    link: PortLink,
    reader: Option<Reader>,
    timed: bool,
    /// The next frame and its capture time. Read ahead to know when it is due.
    next: Option<(Nanos, PoolBuf)>,
    /// The start time of the replay, and the capture time of the first frame.
    origin: Option<(Nanos, Nanos)>,
    now: Nanos,
    opened: Duration,
    scratch: Vec<u8>,
    shared: Arc<Mutex<SharedOutput>>,
    pool: Pool,
    stats: PortStats,
}

impl PcapPort {
    /// Returns true if the input file has been read to its end or to a read error.
    pub fn is_finished(&self) -> bool {
        self.reader.is_none() && self.next.is_none()
    }

    fn read_ahead(&mut self) {
        while self.next.is_none() && self.pool.has_capacity() {
            let Some(reader) = &mut self.reader else { return };
            let pool = &self.pool;
            let frame = reader.next(|at, length, bytes| {
                if bytes.len() < length as usize {
                    return Err(DropReason::Malformed);
                }
                let frame = pool.copy_from(bytes).ok_or(DropReason::TooLong)?;
                Ok((at, frame))
            });
            match frame {
                Some(Ok(next)) => self.next = Some(next),
                Some(Err(reason)) => self.stats.count_drop(reason),
                None => self.reader = None,
            }
        }
    }

    /// The time at which the next frame is due, on the caller's clock.
    fn due(&self) -> Option<Nanos> {
        let (at, _) = self.next.as_ref()?;
        match self.origin {
            Some((start, first)) if self.timed => Some(start + at.since(first)),
            _ => Some(Nanos::ZERO),
        }
    }
}

impl Port for PcapPort {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        self.read_ahead();
        while !batch.is_full() && self.ready() {
            let Some((at, frame)) = self.next.take() else {
                break;
            };
            self.origin.get_or_insert((self.now, at));
            self.stats.count_received(frame.length());
            batch.push(frame);
            self.read_ahead();
        }
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        if batch.is_empty() {
            return;
        }
        let at = self.opened + Duration::from_nanos(self.now.0);
        let mut shared = lock(&self.shared);
        for frame in batch.drain(..) {
            if !fits(&frame, self.link.mtu) {
                self.stats.count_drop(DropReason::TooLong);
                continue;
            }
            self.scratch.clear();
            for segment in frame.segments() {
                self.scratch.extend_from_slice(segment);
            }
            match shared.writer.as_mut().map(|w| w.write(at, &self.scratch)) {
                Some(Err(_)) => self.stats.count_drop(DropReason::TxFull),
                _ => self.stats.count_sent(frame.length()),
            }
        }
    }

    fn info(&self) -> PortLink {
        self.link.clone()
    }

    fn mtu(&self) -> usize {
        self.link.mtu
    }

    fn is_up(&self) -> bool {
        self.link.up
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    fn ready(&self) -> bool {
        self.due().is_some_and(|due| due <= self.now)
    }

    fn attach(&mut self, _sleeper: &mut Sleeper) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, now: Nanos) {
        self.now = now;
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.due()
    }
}

impl Drop for PcapPort {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.ports -= 1;
        if shared.ports == 0
            && let Some(writer) = shared.writer.take()
            && let Err(error) = writer.finish()
        {
            tracing::error!(port = self.link.name, %error, "frames that were sent last are missing in the capture");
        }
    }
}
