//! One iteration of a software RNIC: receiving, sending and completions.

use std::time::Duration;

use castnet_endpoint::{CompletionOp, Endpoint};
use castnet_port::{Batch, PoolBuf, Port};
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, MacAddr, Nanos, Parsed, parse_frame};
use tracing::warn;

use super::SoftRnic;
use crate::datagrams::{self, UdpPort};
use crate::neighbours::Resolution;
use crate::rnic::Rnic;

/// The maximum number of batches received and sent per iteration. It bounds the time of an iteration.
const BATCHES_MAX: usize = 8;
/// The most early frames: more than a window, 128, of one remote.
const EARLY_MAX: usize = 256;

impl<P: Port<Buf = PoolBuf>> SoftRnic<P> {
    /// Processes received frames. Returns true if there were any.
    pub(super) fn receive(&mut self, now: Nanos) -> bool {
        let mac = self.attributes.mac.0;
        let awaits_connection = self.queues.values().any(|queues| queues.next_hop.is_none());
        for round in 0..BATCHES_MAX {
            let Self {
                port,
                endpoint,
                frame: scratch,
                arps,
                early,
                udp_ports,
                config,
                ..
            } = self;
            let count = port.receive_with(scratch, &mut |frame| {
                let Some(dst) = frame.get(..6) else { return };
                if dst != mac && dst != MacAddr::BROADCAST.0 {
                    return;
                }
                if frame.get(12..14) != Some(&[0x08, 0x06]) {
                    if datagrams::receive(udp_ports, config.ip, frame) {
                        return;
                    }
                    if awaits_connection && early.len() < EARLY_MAX && endpoint.is_early(frame) {
                        early.push_back(frame.into());
                    } else {
                        endpoint.handle_frame(now, frame);
                    }
                } else if let Ok(Parsed::Arp(arp)) = parse_frame(frame, frame.len()) {
                    arps.push(arp);
                }
            });
            while let Some(arp) = self.arps.pop() {
                self.receive_arp(&arp);
            }
            if count == 0 {
                return round > 0;
            }
        }
        true
    }

    /// Processes the early frames whose QP has been connected or has ended.
    pub(super) fn handle_early(&mut self) {
        let now = self.now();
        for frame in std::mem::take(&mut self.early) {
            if self.endpoint.is_early(&frame) {
                self.early.push_back(frame);
            } else {
                self.endpoint.handle_frame(now, &frame);
                self.busy = true;
            }
        }
    }

    fn receive_arp(&mut self, arp: &Arp) {
        let outcome = self.neighbours.handle(arp);
        if let Some(reply) = outcome.reply {
            self.send_arp(reply.target_mac, &reply);
        }
        if let Some((ip, mac)) = outcome.learned {
            for (&qpn, _) in self.queues.iter().filter(|(_, q)| q.next_hop == Some(ip)) {
                // A multicast address is refused, and the old address stays.
                let _ = self.endpoint.set_remote_mac(qpn, mac);
            }
        }
        if let Some(mac) = outcome.conflict
            && self.claims_logged.allows(self.now())
        {
            warn!(port = %self.attributes.name, ip = %self.config.ip, %mac, "another host claims this address");
        }
    }

    /// Sends datagrams whose next hops are known. Returns true if there were any.
    pub(super) fn transmit_datagrams(&mut self, now: Nanos) -> bool {
        if self.udp_ports.is_empty() {
            return false;
        }
        let mut frames = Vec::new();
        let mut udp_ports = std::mem::take(&mut self.udp_ports);
        udp_ports.retain_mut(UdpPort::collect);
        let own = (self.attributes.mac, self.config.ip);
        for port in &mut udp_ports {
            let next_hop = |ip| match self.resolve(now, ip) {
                Resolution::Reachable(mac) => Some(Some(mac)),
                Resolution::Pending => None,
                Resolution::Unreachable | Resolution::NoRoom => Some(None),
            };
            port.due(own, next_hop, |frame| frames.push(frame));
        }
        self.udp_ports = udp_ports;
        for frame in &frames {
            let mut batch = Batch::from_iter(self.pool.copy_from(frame));
            self.port.send(&mut batch);
        }
        !frames.is_empty()
    }

    fn send_arp(&mut self, dst: MacAddr, arp: &Arp) {
        let mut bytes = [0; 64];
        if let Ok(length) = emit_arp(&mut bytes, dst, arp)
            && let Some(frame) = bytes.get(..length).and_then(|b| self.pool.copy_from(b))
        {
            let mut batch = Batch::new();
            batch.push(frame);
            self.port.send(&mut batch);
        }
    }

    /// Sends due frames. Returns true if there were any.
    pub(super) fn transmit(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        while let Some((dst, arp)) = self.neighbours.poll_transmit(now) {
            self.send_arp(dst, &arp);
            worked = true;
        }
        for _ in 0..BATCHES_MAX {
            let Self { port, endpoint, .. } = self;
            let sent = port.send_in_place(Endpoint::FRAME_MAX, &mut |out| endpoint.poll_transmit(now, out));
            let (count, more) = sent.unwrap_or_else(|| self.transmit_batch(now));
            worked |= count > 0 || more;
            if !more || count == 0 {
                return worked;
            }
        }
        true
    }

    /// Sends a batch from buffers of the pool.
    fn transmit_batch(&mut self, now: Nanos) -> (usize, bool) {
        let is_last = self.fill_batch(now);
        let count = self.batch.len();
        if count > 0 {
            self.port.send(&mut self.batch);
        }
        (count, !is_last)
    }

    /// Moves frames of the endpoint into the batch. Returns true if no further frame is due.
    fn fill_batch(&mut self, now: Nanos) -> bool {
        while !self.batch.is_full() {
            // A frame taken from the endpoint counts as sent, so a buffer is needed first.
            if !self.pool.has_capacity() {
                return true;
            }
            let Some(length) = self.endpoint.poll_transmit(now, &mut self.frame) else {
                return true;
            };
            if let Some(frame) = self.pool.copy_from(&self.frame[..length]) {
                self.batch.push(frame);
            }
        }
        false
    }

    /// Moves completions into the queues of their QPs. Returns true if there were any.
    pub(super) fn sort_completions(&mut self) -> bool {
        let mut any = false;
        while let Some(completion) = self.endpoint.poll_completion() {
            any = true;
            let Some(queues) = self.queues.get_mut(&completion.qpn) else {
                continue;
            };
            match completion.op {
                CompletionOp::Send | CompletionOp::Write => queues.sends.push_back(completion),
                CompletionOp::Recv | CompletionOp::RecvWriteImm => queues.receives.push_back(completion),
            }
        }
        any
    }

    pub(super) fn idle_for(&self, now: Nanos) -> Duration {
        let due = [
            self.endpoint.poll_timeout().map(|(at, _)| at),
            Some(self.neighbours.poll_timeout()),
            self.port.poll_timeout(),
        ];
        let at = due.into_iter().flatten().fold(Nanos::MAX, Nanos::min);
        Duration::from_nanos(at.since(now).0)
    }
}
