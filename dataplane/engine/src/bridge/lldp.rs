//! LLDP: announces the switch on each port, and learns the neighbours. LLDP frames are never forwarded.

use castnet_wire::build::emit_lldp;
use castnet_wire::lldp::Printable;
use castnet_wire::{DropReason, Ethernet, FrameBuf, Limit, Lldp, LldpId, Nanos};

use crate::bridge::ethernet::is_reserved;
use crate::bridge::{Bridge, Bridging};
use crate::egress::Egress;
use crate::observe::neighbour::{Neighbour, Said, name};
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::Output;
use crate::output::cx::Cx;

/// Names are cut in announcements, so that a frame fits the head of any buffer.
const PORT_MAX: usize = 36;
const SYSTEM_MAX: usize = 56;
/// Ethernet, chassis, port, time, system name, end.
const FRAME_MAX: usize = Ethernet::LEN + 9 + (3 + PORT_MAX) + 4 + (2 + SYSTEM_MAX) + 2;

/// Intervals after which a silent neighbour expires (802.1AB 9.2.5.6: msgTxHold).
const HOLD: u64 = 4;

/// Rate limit of answers to new neighbours (802.1AB: txCreditMax, and one txCredit a second).
pub(crate) const ANSWERS: Limit = Limit::new(5, Nanos::from_secs(1));

impl Bridge {
    pub(crate) fn send_lldp<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        output: &mut Output,
        interval: Nanos,
    ) {
        let config = self.config.clone();
        let ttl_secs = interval
            .0
            .saturating_mul(HOLD)
            .div_ceil(1_000_000_000)
            .clamp(1, (u16::MAX - 1).into()) as u16;
        for port in config.ports.iter().filter(|p| output.ports.up.contains(p.id)) {
            let lldp = Lldp {
                chassis: LldpId::Mac(config.mac),
                port: LldpId::Text(cut(&port.name, PORT_MAX)),
                // A neighbour that has known this switch before it was started sees that something is new, and answers at once.
                ttl_secs: ttl_secs + u16::from(self.lldp_fresh.contains(port.id)),
                system_name: cut(&config.switch, SYSTEM_MAX),
            };
            let mut bytes = [0; FRAME_MAX];
            let length = emit_lldp(&mut bytes, port.mac, &lldp).ok();
            let frame = length.and_then(|length| cx.egress.gather(port.id, &[bytes.get(..length)?]));
            match frame {
                Some(frame) => {
                    output.counters.totals.originated += 1;
                    cx.send(&mut output.counters, port.id, frame);
                    self.lldp_fresh = self.lldp_fresh.without(port.id);
                }
                None => output.counters.totals.copies_lost += 1,
            }
        }
    }
}

impl Bridging<'_> {
    /// Handles an LLDP frame. `at` is the offset of the data unit.
    pub(crate) fn lldp_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        at: usize,
        frame: E::Buf,
    ) -> Verdict {
        // A frame to an address that bridges forward is switched like any other.
        let mac = match Ethernet::parse(frame.head()) {
            Ok((ethernet, _)) if is_reserved(ethernet.dst) => ethernet.src,
            _ => return self.bridge(cx, frame),
        };
        let mut bytes = [0; 1024];
        let length = frame.copy_to(&mut bytes);
        let lldp = match Lldp::parse(bytes.get(at..length).unwrap_or_default()) {
            Ok(lldp) => lldp,
            Err(error) => return cx.drop(Stage::Lldp, DropReason::Malformed, || error.to_string()),
        };
        let said = Said::Lldp {
            chassis: name(lldp.chassis),
            remote_port: name(lldp.port),
            system: name(Printable(lldp.system_name)),
            mac,
            ttl: Nanos::from_secs(lldp.ttl_secs.into()),
        };
        let news = self.own.neighbours.lldp(
            Neighbour {
                port: cx.ingress,
                said,
                seen: cx.now,
            },
            self.events,
        );
        // A new or changed neighbour gets an answer at once (802.1AB: txFast).
        let answer = self.own.lldp_answers.next(cx.now);
        if news && self.own.lldp_at.is_some_and(|due| due > answer) {
            self.own.lldp_answers.take(cx.now);
            self.own.lldp_at = Some(answer);
        }
        self.own.start_ageing(cx.now);
        cx.observer.step(|| {
            let system = Printable(lldp.system_name);
            let decision = format!("{system} port {} is at port {}", lldp.port, cx.ingress);
            Step::new(
                Stage::Lldp,
                decision,
                format!("LLDP, true for {} s", lldp.ttl_secs),
            )
        });
        Verdict::Absorbed
    }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max))
        .unwrap_or_default()
}
