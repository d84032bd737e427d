//! Capture files keep every byte of the frames.

use std::fs;
use std::path::Path;

use castnet_port::{Batch, OpenError, PcapSpec, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides};
use castnet_wire::{DropReason, Nanos};
use proptest::prelude::*;

fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 256,
        bodies: 128,
        frame_max: 9216,
    })
}

fn spec(input: Option<&Path>, output: Option<&Path>) -> PcapSpec {
    PcapSpec::new(input.map(Into::into), output.map(Into::into))
}

fn write(path: &Path, frames: &[(u64, Vec<u8>)]) {
    let pool = pool();
    let mut port = spec(None, Some(path)).open(&pool, Sides::Both).unwrap();
    for (at, frame) in frames {
        port.poll(Nanos(*at));
        let mut batch = Batch::new();
        batch.push(pool.copy_from(frame).unwrap());
        port.send(&mut batch);
    }
    assert_eq!(port.stats().tx_frames, frames.len() as u64);
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let pool = pool();
    let mut port = spec(Some(path), None).open(&pool, Sides::Both).unwrap();
    let (mut frames, mut batch) = (Vec::new(), Batch::new());
    while port.ready() {
        port.receive(&mut batch);
        frames.extend(batch.drain(..).map(|f: PoolBuf| f.to_vec()));
    }
    assert!(port.is_finished());
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn both_formats_keep_every_byte(lengths in prop::collection::vec(14usize..9014, 0..80)) {
        let folder = tempfile::tempdir().unwrap();
        let frames: Vec<_> = lengths.iter().enumerate().map(|(i, &n)| (i as u64 * 1_000, vec![i as u8; n])).collect();
        let bytes: Vec<_> = frames.iter().map(|(_, f)| f.clone()).collect();
        for name in ["a.pcap", "a.pcapng"] {
            let path = folder.path().join(name);
            write(&path, &frames);
            prop_assert_eq!(&read(&path), &bytes);
        }
    }
}

#[test]
fn timed_replay_keeps_the_intervals() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.pcap", "t.pcapng"] {
        let path = folder.path().join(name);
        write(
            &path,
            &[
                (0, vec![1; 60]),
                (1_000_500, vec![2; 60]),
                (3_000_000, vec![3; 60]),
            ],
        );
        let pool = pool();
        let mut spec = spec(Some(&path), None);
        spec.timed = true;
        let mut port = spec.open(&pool, Sides::Both).unwrap();
        let mut arrivals = Vec::new();
        let mut now = Nanos(77_000_000);
        loop {
            port.poll(now);
            let mut batch = Batch::new();
            port.receive(&mut batch);
            arrivals.extend(batch.iter().map(|_| now.0 - 77_000_000));
            match port.poll_timeout() {
                Some(due) => now = due.max(now),
                None => break,
            }
        }
        assert_eq!(arrivals, [0, 1_000_500, 3_000_000], "{name}");
    }
}

#[test]
fn several_queues_share_one_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pcap");
    let spec = PortSpec::from(spec(None, Some(&path)));
    let pool = pool();
    let mut queues = [Sides::Both, Sides::Send].map(|s| spec.open(&pool, s).unwrap());
    for (i, queue) in (0..6).zip([0, 1, 1, 0, 1, 0]) {
        let mut batch = Batch::new();
        batch.push(pool.copy_from(&[i; 64]).unwrap());
        queues[queue].send(&mut batch);
    }
    drop(queues);
    assert_eq!(read(&path), (0..6).map(|i| vec![i; 64]).collect::<Vec<_>>());
}

#[test]
fn a_truncated_file_ends_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcap");
    write(&path, &[(0, vec![1; 60]), (1, vec![2; 600])]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 300]).unwrap();
    assert_eq!(read(&path), [vec![1; 60]]);
}

#[test]
fn truncated_frames_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snap.pcap");
    write(&path, &[(0, vec![1; 60]), (1, vec![2; 60])]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[24 + 12..24 + 16].copy_from_slice(&1000_u32.to_ne_bytes());
    fs::write(&path, bytes).unwrap();
    let pool = pool();
    let mut port = spec(Some(&path), None).open(&pool, Sides::Both).unwrap();
    let mut batch = Batch::new();
    port.receive(&mut batch);
    assert_eq!((batch.len(), batch[0].to_vec()), (1, vec![2; 60]));
    assert_eq!(port.stats().drops[DropReason::Malformed], 1);
}

#[test]
fn open_errors_name_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool();
    let open = |input: Option<&Path>, output: Option<&Path>| {
        spec(input, output).open(&pool, Sides::Both).unwrap_err()
    };

    let missing = folder.path().join("missing.pcap");
    assert!(matches!(open(Some(&missing), None), OpenError::File { .. }));
    assert!(matches!(
        open(None, Some(&missing.join("x"))),
        OpenError::File { .. }
    ));
    let text = folder.path().join("text.pcap");
    fs::write(&text, "no capture, but quite a long text in its place").unwrap();
    assert!(matches!(open(Some(&text), None), OpenError::NotACapture { .. }));
    fs::write(&text, "").unwrap();
    assert!(matches!(open(Some(&text), None), OpenError::NotACapture { .. }));
    let raw = folder.path().join("raw.pcap");
    write(&raw, &[]);
    let mut bytes = fs::read(&raw).unwrap();
    bytes[20..24].copy_from_slice(&101_u32.to_ne_bytes());
    fs::write(&raw, bytes).unwrap();
    let error = open(Some(&raw), None).to_string();
    assert!(error.contains("link type"), "{error}");
}

/// A path that is given by mistake costs no file.
#[test]
fn nothing_but_a_capture_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pcap");
    write(&path, &[(0, vec![1; 60])]);
    let of_capture = fs::read(&path).unwrap();
    for (before, is_taken) in [
        (&of_capture[..], true),
        (b"", true),
        (b"-----BEGIN PRIVATE KEY-----", false),
        (b"\xA1\xB2", false),
    ] {
        fs::write(&path, before).unwrap();
        let opened = spec(None, Some(&path)).open(&pool(), Sides::Both);
        assert_eq!(opened.is_ok(), is_taken, "{before:?}");
        if !is_taken {
            assert_eq!(fs::read(&path).unwrap(), before);
        }
    }
    assert!(
        spec(None, Some(Path::new("/dev/null")))
            .open(&pool(), Sides::Both)
            .is_ok()
    );
    // Its own input, also by another name.
    fs::write(&path, &of_capture).unwrap();
    let link = folder.path().join("link.pcap");
    fs::hard_link(&path, &link).unwrap();
    let same = spec(Some(&path), Some(&link)).open(&pool(), Sides::Both);
    assert!(matches!(same, Err(OpenError::File { .. })));
    assert_eq!(fs::read(&path).unwrap(), of_capture);
}
