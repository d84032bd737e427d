//! A host that is nothing but the test's own frames: an interface in the lab's namespace, and ARP for one address.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use castnet_port::{Batch, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides};
use castnet_wire::arp::ArpOp;
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, MacAddr, Parsed, parse_frame};

/// Frames in and out of an interface, on a thread that lives in the interface's network namespace.
pub struct Raw {
    frames: Receiver<Vec<u8>>,
    to_send: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Raw {
    /// Opens `interface` in `namespace`, and answers ARP for `ip` with `mac`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(namespace: &str, interface: &str, mac: MacAddr, ip: Ipv4Addr) -> Result<Self> {
        let (tell, frames) = channel();
        let (to_send, sending) = channel::<Vec<u8>>();
        let (ready, opened) = channel();
        let path = format!("/run/netns/{namespace}");
        let spec: PortSpec = format!("af_packet:{interface},rx=1024,tx=128").parse()?;
        // Other hosts may have the interface, too.
        let spec = spec.for_rnic(ip);
        let thread = std::thread::spawn(move || -> Result<()> {
            let file = std::fs::File::open(&path).with_context(|| path.clone())?;
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)?;
            let pool = Pool::new(PoolConfig::default());
            let mut port = spec.open(&pool, Sides::Both)?;
            let _ = ready.send(());
            let mut batch: Batch<PoolBuf> = Batch::new();
            loop {
                port.receive(&mut batch);
                let (mut answers, mut arrived) = (Vec::new(), Vec::new());
                let idle = batch.is_empty();
                for frame in batch.drain(..) {
                    let bytes = frame.to_vec();
                    match parse_frame(&bytes, bytes.len()) {
                        Ok(Parsed::Roce(_)) => arrived.push(bytes),
                        Ok(Parsed::Arp(arp)) if arp.target_ip == ip && arp.op == ArpOp::Request => {
                            answers.extend(reply(mac, &arp));
                        }
                        _ => {}
                    }
                }
                if arrived.into_iter().any(|frame| tell.send(frame).is_err()) {
                    return Ok(());
                }
                let mut out: Batch<PoolBuf> = Batch::new();
                for answer in answers {
                    out.extend(pool.copy_from(&answer));
                }
                loop {
                    if out.len() == castnet_port::BATCH {
                        port.send(&mut out);
                    }
                    match sending.try_recv() {
                        Ok(frame) => out.extend(pool.copy_from(&frame)),
                        Err(std::sync::mpsc::TryRecvError::Empty) => break,
                        Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
                    }
                }
                if !out.is_empty() {
                    port.send(&mut out);
                }
                if idle {
                    nix::poll::poll(&mut [], 1u8).ok();
                }
            }
        });
        if opened.recv().is_err() {
            return match thread.join() {
                Ok(Err(error)) => Err(error),
                _ => bail!("the thread of {interface} has died"),
            };
        }
        Ok(Self {
            frames,
            to_send: Some(to_send),
            thread: Some(thread),
        })
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn send(&self, frame: Vec<u8>) -> Result<()> {
        let to_send = self.to_send.as_ref().context("closed")?;
        to_send.send(frame).context("the interface's thread has died")
    }

    /// The next RoCE frame that came, if one does within `within`.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn next(&self, within: Duration) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + within;
        match self
            .frames
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(frame) => Ok(Some(frame)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the interface's thread has died"),
        }
    }
}

fn reply(mac: MacAddr, asked: &Arp) -> Option<Vec<u8>> {
    let mut frame = [0; 60];
    emit_arp(&mut frame, asked.sender_mac, &asked.reply(mac)).ok()?;
    Some(frame.to_vec())
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.to_send = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
