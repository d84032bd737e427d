//! Packet files: frames out of pcap and pcapng, captures into pcapng.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use castnet_console::exit::{self, Failure, Outcome};
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

/// The first `most` frames of a pcap or pcapng file.
pub(crate) fn read(path: &Path, most: usize) -> Outcome<Vec<Vec<u8>>> {
    let mut file = File::open(path).map_err(|e| exit::cannot_read(path, &e))?;
    let mut magic = [0; 4];
    let known = file
        .read_exact(&mut magic)
        .and_then(|()| file.seek(SeekFrom::Start(0)));
    known.map_err(|e| exit::cannot_read(path, &e))?;
    let frames = if magic == PCAPNG {
        read_pcapng(file, most)
    } else {
        read_pcap(file, most)
    };
    frames.map_err(|e| {
        Failure::usage(format!(
            "{} is no packet file that can be read: {e}",
            path.display()
        ))
        .next("give a pcap or pcapng file with Ethernet frames")
    })
}

fn read_pcap(file: File, most: usize) -> Result<Vec<Vec<u8>>, PcapError> {
    let mut reader = PcapReader::new(BufReader::new(file))?;
    let mut frames = Vec::new();
    while frames.len() < most {
        match reader.next_packet() {
            Some(packet) => frames.push(packet?.data.into_owned()),
            None => break,
        }
    }
    Ok(frames)
}

fn read_pcapng(file: File, most: usize) -> Result<Vec<Vec<u8>>, PcapError> {
    let mut reader = PcapNgReader::new(BufReader::new(file))?;
    let mut frames = Vec::new();
    while frames.len() < most {
        match reader.next_block().transpose()? {
            Some(Block::EnhancedPacket(packet)) => frames.push(packet.data.into_owned()),
            Some(Block::SimplePacket(packet)) => frames.push(packet.data.into_owned()),
            Some(_) => {}
            None => break,
        }
    }
    Ok(frames)
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

/// A pcapng file with one interface for each port, times in nanoseconds.
pub(crate) struct Writer<W: Write> {
    inner: PcapNgWriter<W>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new<'n>(to: W, interfaces: impl IntoIterator<Item = &'n str>, snap: u32) -> Outcome<Self> {
        let mut inner = PcapNgWriter::new(to).map_err(failure)?;
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
            inner.write_pcapng_block(block).map_err(failure)?;
        }
        Ok(Self { inner })
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
        self.inner.write_pcapng_block(block).map_err(failure)?;
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Outcome {
        Ok(self.inner.get_mut().flush()?)
    }
}

fn failure(error: PcapError) -> Failure {
    match error {
        PcapError::IoError(error) => Failure::from(error),
        other => Failure::failed(format!("cannot write the capture: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_can_be_read_back_with_names_and_remarks() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, ["h1", "spine"], 0).expect("a writer");
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

    #[test]
    fn files_that_hold_no_packets_are_refused_by_name() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"not packets at all").expect("written");
        let failure = read(file.path(), 1).expect_err("no packets");
        assert_eq!(failure.code(), 2);
        assert!(read(Path::new("/nonexistent/x.pcap"), 1).is_err());
    }
}
