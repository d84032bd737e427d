//! Packet files: frames out of pcap and pcapng, captures into pcapng.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files;
use castnet_port::pcap;
use pcap_file::DataLink;
use pcap_file::PcapError;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};

/// The block type that a pcapng file starts with.
const PCAPNG: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];

/// A frame of a pcap or pcapng file, by its number from 1. `-` is stdin.
///
/// # Errors
/// The file or the frame cannot be read, the frame is not one of Ethernet, or it was cut when it was captured.
pub(crate) fn frame(path: &Path, number: usize) -> Outcome<Vec<u8>> {
    let name = path.display();
    let mut reader = Reader::open(path)?;
    for at in 1..=number {
        let frame = match reader.next() {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                let what = format!(
                    "{name} has no frame {number}: frames are counted from 1, and it has {}",
                    at - 1
                );
                return Err(Failure::usage(what));
            }
            Err(error) => return Err(unread(path, at, error)),
        };
        if at == number {
            return frame.whole(&format!("frame {at} of {name}"));
        }
    }
    Err(Failure::usage("--frame 0: frames are counted from 1"))
}

/// The failure of reading a frame.
fn unread(path: &Path, at: usize, error: PcapError) -> Failure {
    let name = path.display();
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => Failure::usage(format!(
            "{name} ends in the middle of frame {at}, or is damaged there; {} before it can be read",
            at - 1
        ))
        .next("--frame takes one of those; for this one, capture again"),
        PcapError::IoError(error) => exit::cannot_read(path, &error),
        error => Failure::usage(format!("{name}: frame {at} cannot be read: {error}")),
    }
}

/// A frame as a packet file has it.
struct Captured {
    bytes: Vec<u8>,
    /// On the wire.
    length: usize,
    link: DataLink,
}

impl Captured {
    fn whole(self, name: &str) -> Outcome<Vec<u8>> {
        let Self { bytes, length, link } = self;
        if link != DataLink::ETHERNET {
            let what = format!(
                "{name} has link type {} ({link:?}), and not Ethernet",
                u32::from(link)
            );
            return Err(Failure::usage(what).next("capture at one interface and not at all: tcpdump -i eth0"));
        }
        if bytes.len() < length {
            let what = format!("{name} was cut to {} of {length} bytes", bytes.len());
            return Err(Failure::usage(what)
                .next("capture whole frames: tcpdump -s 0, castnet capture without --snap"));
        }
        Ok(bytes)
    }
}

enum Reader {
    Pcap(PcapReader<Box<dyn Read>>),
    PcapNg(PcapNgReader<Box<dyn Read>>),
}

impl Reader {
    fn open(path: &Path) -> Outcome<Self> {
        let mut file: Box<dyn Read> = match path == Path::new("-") {
            true => Box::new(io::stdin()),
            false => {
                let file = files::open(path, File::options().read(true));
                Box::new(file.map_err(|e| exit::cannot_read(path, &e))?)
            }
        };
        let mut magic = [0; 4];
        file.read_exact(&mut magic).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => refused(path, &"it is shorter than the header of one"),
            _ => exit::cannot_read(path, &error),
        })?;
        // A pipe cannot go back.
        let whole: Box<dyn Read> = Box::new(io::Cursor::new(magic).chain(file));
        let reader = match magic {
            PCAPNG => PcapNgReader::new(whole).map(Self::PcapNg),
            _ => PcapReader::new(whole).map(Self::Pcap),
        };
        reader.map_err(|error| refused(path, &error))
    }

    fn next(&mut self) -> Result<Option<Captured>, PcapError> {
        match self {
            Self::Pcap(reader) => {
                let link = reader.header().datalink;
                // Without what the library compares with the snap length: 0 is no limit, and frames may have been longer.
                let packet = reader.next_raw_packet().transpose()?;
                Ok(packet.map(|packet| Captured {
                    length: packet.orig_len as usize,
                    bytes: packet.data.into_owned(),
                    link,
                }))
            }
            Self::PcapNg(reader) => loop {
                let (interface, length, mut bytes, is_simple) = match reader.next_block().transpose()? {
                    Some(Block::EnhancedPacket(packet)) => {
                        let length = packet.original_len as usize;
                        (packet.interface_id, length, packet.data.into_owned(), false)
                    }
                    Some(Block::SimplePacket(packet)) => {
                        let length = packet.original_len as usize;
                        (0, length, packet.data.into_owned(), true)
                    }
                    Some(_) => continue,
                    None => return Ok(None),
                };
                let of = reader.interfaces().get(interface as usize);
                let of = of.ok_or(PcapError::InvalidInterfaceId(interface))?;
                if is_simple {
                    // It is padded, and does not say how much of it there is.
                    let most = Some(of.snaplen as usize).filter(|most| *most > 0);
                    bytes.truncate(most.unwrap_or(length).min(length));
                }
                return Ok(Some(Captured {
                    bytes,
                    length,
                    link: of.linktype,
                }));
            },
        }
    }
}

fn refused(path: &Path, why: &dyn fmt::Display) -> Failure {
    Failure::usage(format!(
        "{} is no packet file that can be read: {why}",
        path.display()
    ))
    .next("give a pcap or pcapng file with Ethernet frames")
}

#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// Index of the interface in [`Writer::new`].
    pub(crate) interface: u32,
    /// Nanoseconds since the Unix epoch.
    pub(crate) at_unix_ns: u64,
    pub(crate) length: u32,
    /// As many bytes as are kept.
    pub(crate) bytes: &'a [u8],
    /// `Some(true)`: it went out; `Some(false)`: it came in.
    pub(crate) outbound: Option<bool>,
    /// Why it was dropped.
    pub(crate) comment: Option<String>,
}

/// Fails if a capture would replace a file that is neither empty nor a packet file.
pub(crate) fn check_replaceable(path: &Path) -> Outcome {
    pcap::check_replaceable(path).map_err(|error| match error.kind() {
        // It was read, and is no packet file.
        io::ErrorKind::Other => Failure::usage(format!("{}: {error}", path.display()))
            .next("give the capture another name, or remove the file"),
        _ => exit::cannot_read(path, &error),
    })
}

/// A pcapng file with one interface for each port, times in nanoseconds.
pub(crate) struct Writer<W: Write> {
    inner: PcapNgWriter<W>,
    path: PathBuf,
}

impl<W: Write> Writer<W> {
    /// `path`: of the file, for failures.
    pub(crate) fn new<'n>(
        to: W,
        path: &Path,
        interfaces: impl IntoIterator<Item = &'n str>,
        snap: u32,
    ) -> Outcome<Self> {
        let unwritten = |error| unwritten(path, error);
        let mut inner = PcapNgWriter::new(to).map_err(unwritten)?;
        for name in interfaces {
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
                InterfaceDescriptionOption::IfTsResol(9),
            ];
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: snap,
                options,
            };
            inner.write_pcapng_block(block).map_err(unwritten)?;
        }
        let path = path.to_owned();
        Ok(Self { inner, path })
    }

    pub(crate) fn write(&mut self, record: &Record<'_>) -> Outcome {
        let mut options = Vec::new();
        if let Some(comment) = &record.comment {
            options.push(EnhancedPacketOption::Comment(Cow::Borrowed(comment.as_str())));
        }
        if let Some(outbound) = record.outbound {
            // Bits 0 and 1 of the flags word: 01 inbound, 10 outbound.
            options.push(EnhancedPacketOption::Flags(if outbound { 0b10 } else { 0b01 }));
        }
        let block = EnhancedPacketBlock {
            interface_id: record.interface,
            timestamp: Duration::from_nanos(record.at_unix_ns),
            original_len: record.length,
            data: Cow::Borrowed(record.bytes),
            options,
        };
        let written = self.inner.write_pcapng_block(block);
        written.map(drop).map_err(|error| unwritten(&self.path, error))
    }

    pub(crate) fn flush(&mut self) -> Outcome {
        let flushed = self.inner.get_mut().flush();
        flushed.map_err(|error| unwritten(&self.path, PcapError::IoError(error)))
    }
}

/// The failure of writing a capture. A reader that closes a pipe is none.
fn unwritten(path: &Path, error: PcapError) -> Failure {
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::BrokenPipe => error.into(),
        PcapError::IoError(error) => exit::cannot_write(path, &error),
        other => Failure::failed(format!("cannot write {}: {other}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_can_be_read_back_with_names_and_remarks() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, Path::new("out"), ["h1", "spine"], 0).expect("a writer");
        let frame = [7u8; 61];
        let record = Record {
            interface: 1,
            at_unix_ns: 1_700_000_000_123_456_789,
            length: 61,
            bytes: &frame,
            outbound: Some(false),
            comment: Some("dropped: bad-icrc".to_owned()),
        };
        writer.write(&record).expect("written");
        drop(writer);

        let mut reader = PcapNgReader::new(bytes.as_slice()).expect("pcapng");
        let mut packets = 0;
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.expect("a block") {
                assert_eq!(packet.data.as_ref(), frame);
                assert_eq!(packet.interface_id, 1);
                assert_eq!(packet.timestamp.as_nanos(), 1_700_000_000_123_456_789);
                assert!(
                    packet
                        .options
                        .contains(&EnhancedPacketOption::Comment("dropped: bad-icrc".into()))
                );
                assert!(packet.options.contains(&EnhancedPacketOption::Flags(1)));
                packets += 1;
            }
        }
        assert_eq!(packets, 1);
        let names: Vec<_> = reader
            .interfaces()
            .iter()
            .flat_map(|i| &i.options)
            .filter_map(|o| match o {
                InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(names, ["h1", "spine"]);
    }

    const FRAME: [u8; 122] = [7; 122];

    /// A pcap file as its header and records are given: snap length and link type; length on the wire, and bytes.
    fn pcap(magic: u32, is_big: bool, (snap, link): (u32, u32), records: &[(u32, &[u8])]) -> Vec<u8> {
        let word = |n: u32| if is_big { n.to_be_bytes() } else { n.to_le_bytes() };
        // The version is 2.4, as two halves of a word.
        let version = if is_big { 2 << 16 | 4 } else { 4 << 16 | 2 };
        let header = [magic, version, 0, 0, snap, link];
        let mut file: Vec<u8> = header.into_iter().flat_map(word).collect();
        for (length, bytes) in records {
            let record = [1, 2, bytes.len() as u32, *length];
            file.extend(record.into_iter().flat_map(word));
            file.extend_from_slice(bytes);
        }
        file
    }

    const MICROS: u32 = 0xA1B2_C3D4;
    const NANOS: u32 = 0xA1B2_3C4D;

    fn read(bytes: &[u8], number: usize) -> Outcome<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("written");
        frame(file.path(), number)
    }

    /// What is said about a frame that is refused.
    fn refusal(bytes: &[u8], number: usize) -> String {
        let failure = read(bytes, number).expect_err("it is refused");
        assert_eq!(failure.code(), 2, "{}", failure.what);
        failure.text()
    }

    #[test]
    fn frames_of_each_byte_order_and_unit_of_time_are_read() {
        for (magic, is_big) in [(MICROS, false), (MICROS, true), (NANOS, false), (NANOS, true)] {
            // A snap length of 0 is no limit; some tools write one that is shorter than the frames.
            for snap in [0, 60, 262_144] {
                let file = pcap(magic, is_big, (snap, 1), &[(2, &[1, 2]), (122, &FRAME)]);
                assert_eq!(read(&file, 2).expect("a frame"), FRAME);
            }
        }
    }

    #[test]
    fn a_frame_that_was_cut_or_is_of_another_link_type_is_refused_with_the_reason() {
        for snap in [60, 65_535] {
            let file = pcap(MICROS, false, (snap, 1), &[(122, &FRAME[..60])]);
            let said = refusal(&file, 1);
            assert!(
                said.contains("was cut to 60 of 122 bytes") && said.contains("tcpdump -s 0"),
                "{said}"
            );
        }
        let said = refusal(&pcap(MICROS, false, (262_144, 113), &[(122, &FRAME)]), 1);
        assert!(
            said.contains("link type 113 (LINUX_SLL)") && said.contains("tcpdump -i"),
            "{said}"
        );
    }

    #[test]
    fn a_file_that_ends_in_a_frame_is_read_up_to_there() {
        let whole = pcap(MICROS, false, (65_535, 1), &[(122, &FRAME), (122, &FRAME)]);
        // In the frame, in its record's header, and behind it.
        for cut in [whole.len() - 1, whole.len() - 122, whole.len() - 130] {
            let file = &whole[..cut];
            assert_eq!(read(file, 1).expect("a frame"), FRAME);
            let said = refusal(file, 2);
            assert!(said.contains("ends in the middle of frame 2"), "{said}");
        }
        let said = refusal(&whole, 3);
        assert!(said.contains("no frame 3") && said.contains("it has 2"), "{said}");
        assert!(refusal(&whole, 0).contains("counted from 1"));
    }

    fn pcapng(bytes: &[u8], length: u32) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, Path::new("out"), ["h1"], 0).expect("a writer");
        let record = Record {
            interface: 0,
            at_unix_ns: 1,
            length,
            bytes,
            outbound: None,
            comment: None,
        };
        writer.write(&record).expect("written");
        drop(writer);
        file
    }

    #[test]
    fn frames_of_pcapng_are_read_whole_or_refused() {
        assert_eq!(read(&pcapng(&FRAME, 122), 1).expect("a frame"), FRAME);
        let said = refusal(&pcapng(&FRAME[..60], 122), 1);
        assert!(said.contains("was cut to 60 of 122 bytes"), "{said}");
        let whole = pcapng(&FRAME, 122);
        let said = refusal(&whole[..whole.len() - 8], 1);
        assert!(said.contains("ends in the middle of frame 1"), "{said}");

        // A simple packet is padded: 3 is the type of its block.
        let mut file = Vec::new();
        drop(Writer::new(&mut file, Path::new("out"), ["h1"], 0).expect("a writer"));
        let padded = [&FRAME[..61], &[0; 3]].concat();
        let length = 16 + padded.len() as u32;
        let words = [3, length, 61].map(u32::to_le_bytes);
        file.extend([&words.concat()[..], &padded, &length.to_le_bytes()].concat());
        assert_eq!(read(&file, 1).expect("a frame"), &FRAME[..61]);
    }

    #[test]
    fn a_full_disk_is_a_failure_that_names_the_file() {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let mut writer = Writer::new(io::BufWriter::new(full), Path::new("c.pcapng"), ["h1"], 0);
        let failed = writer
            .as_mut()
            .map_err(|failure| failure.clone())
            .and_then(|writer| writer.flush());
        let said = failed.expect_err("it is full").text();
        assert!(
            said.contains("cannot write c.pcapng:") && said.contains("free space"),
            "{said}"
        );
        let closed = PcapError::IoError(io::ErrorKind::BrokenPipe.into());
        assert_eq!(unwritten(Path::new("stdout"), closed).code(), 0);
    }

    #[test]
    fn a_capture_replaces_only_captures_and_empty_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        check_replaceable(&path).expect("there is nothing");
        check_replaceable(folder.path()).expect("no file");
        for (content, is_taken) in [
            (Vec::new(), true),
            (pcapng(&FRAME, 122), true),
            (0xA1B2_C3D4_u32.to_le_bytes().to_vec(), true),
            (0xA1B2_3C4D_u32.to_be_bytes().to_vec(), true),
            (b"[[groups]]\n".to_vec(), false),
            (PCAPNG[..3].to_vec(), false),
        ] {
            std::fs::write(&path, &content).expect("written");
            let checked = check_replaceable(&path).map_err(|failure| failure.code());
            assert_eq!(checked, if is_taken { Ok(()) } else { Err(2) }, "{content:?}");
        }
        let said = check_replaceable(&path.join("below"))
            .expect_err("no folder")
            .text();
        assert!(
            said.contains("cannot read") && !said.contains("another name"),
            "{said}"
        );
    }

    #[test]
    fn a_pipe_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo").success());
        let writer = std::thread::spawn({
            let path = path.clone();
            move || files::write(&path, &pcapng(&FRAME, 122))
        });
        assert_eq!(frame(&path, 1).expect("a frame"), FRAME);
        writer.join().expect("a thread").expect("written");
    }

    #[test]
    fn files_that_hold_no_packets_are_refused_by_name() {
        for bytes in [&b"not packets at all"[..], b"no", b""] {
            let said = refusal(bytes, 1);
            assert!(said.contains("no packet file"), "{said}");
        }
        assert!(frame(Path::new("/nonexistent/x.pcap"), 1).is_err());
    }
}
