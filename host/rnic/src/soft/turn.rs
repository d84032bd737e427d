//! One turn of a software RNIC: what came in, what goes out, what is done.

use std::time::Duration;

use castnet_endpoint::CompletionOp;
use castnet_port::{Batch, FrameBuf, PoolBuf, Port};
use castnet_wire::build::emit_arp;
use castnet_wire::{Arp, MacAddr, Nanos, Parsed, parse_frame};
use tracing::warn;

use super::SoftRnic;

/// Batches that one turn receives, and sends, at most: its time is bounded, and nobody starves.
const BATCHES_MAX: usize = 8;

impl<P: Port<Buf = PoolBuf>> SoftRnic<P> {
    /// Takes received frames in; returns whether there were any.
    pub(super) fn receive(&mut self, now: Nanos) -> bool {
        for round in 0..BATCHES_MAX {
            let mut batch = std::mem::take(&mut self.batch);
            self.port.receive(&mut batch);
            if batch.is_empty() {
                return round > 0;
            }
            for frame in &batch {
                self.receive_frame(now, frame);
            }
            batch.clear();
            self.batch = batch;
        }
        true
    }

    fn receive_frame(&mut self, now: Nanos, frame: &PoolBuf) {
        let head = frame.head();
        let Some(dst) = head.get(..6) else { return };
        if dst != self.attributes.mac.0 && dst != MacAddr::BROADCAST.0 {
            return;
        }
        if head.get(12..14) == Some(&[0x08, 0x06]) {
            if let Ok(Parsed::Arp(arp)) = parse_frame(head, frame.length()) {
                self.receive_arp(&arp);
            }
            return;
        }
        if head.len() == frame.length() {
            self.endpoint.handle_frame(now, head);
        } else {
            let length = frame.copy_to(&mut self.frame);
            self.endpoint.handle_frame(now, &self.frame[..length]);
        }
    }

    fn receive_arp(&mut self, arp: &Arp) {
        let heard = self.neighbours.handle(arp);
        if let Some(reply) = heard.reply {
            self.send_arp(reply.target_mac, &reply);
        }
        if let Some((ip, mac)) = heard.learned {
            for (&qpn, _) in self.queues.iter().filter(|(_, q)| q.next_hop == Some(ip)) {
                // A multicast address is refused, and the old one stays.
                let _ = self.endpoint.set_remote_mac(qpn, mac);
            }
        }
        if let Some(mac) = heard.conflict {
            warn!(port = %self.attributes.name, ip = %self.config.ip, %mac, "another host claims this address");
        }
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

    /// Sends what is due; returns whether there was anything.
    pub(super) fn transmit(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        while let Some((dst, arp)) = self.neighbours.poll_transmit(now) {
            self.send_arp(dst, &arp);
            worked = true;
        }
        for _ in 0..BATCHES_MAX {
            let is_last = self.fill_batch(now);
            worked |= !self.batch.is_empty();
            if !self.batch.is_empty() {
                self.port.send(&mut self.batch);
            }
            if is_last {
                return worked;
            }
        }
        true
    }

    /// Puts frames of the endpoint into the batch; returns whether those were all.
    fn fill_batch(&mut self, now: Nanos) -> bool {
        while !self.batch.is_full() {
            // What the endpoint has handed out counts as sent: so first the room, then the frame.
            if !self.pool.has_room() {
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

    /// Sorts completions into the queues of their QPs; returns whether there were any.
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

    /// How long nothing is due.
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
