//! One entry of the Path Table: seven bytes.

use castnet_wire::{NakCode, Psn, RnrTimer, Syndrome};

/// The feedback state of one path, in byte fields, so that entries have no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    ack: [u8; 3],
    msn: [u8; 3],
    /// The NAK of `ack + 1`, until the next progress of the path. Its PSN is not stored: a NAK of `e` acknowledges all up to `e - 1`.
    pub(super) refusal: Refusal,
}

impl Entry {
    pub(super) const fn new(ack: Psn) -> Self {
        Self {
            ack: ack.to_bytes(),
            msn: [0; 3],
            refusal: Refusal::NONE,
        }
    }

    pub(super) const fn ack(&self) -> Psn {
        Psn::from_bytes(self.ack)
    }

    pub(super) const fn msn(&self) -> u32 {
        Psn::from_bytes(self.msn).value()
    }

    /// The path has everything up to `ack`, and has refused the next PSN with `refusal`.
    pub(super) const fn advance(&mut self, ack: Psn, msn: u32, refusal: Refusal) {
        *self = Self {
            ack: ack.to_bytes(),
            msn: Psn::new(msn).to_bytes(),
            refusal,
        };
    }
}

/// A NAK or none, in a byte whose order is its precedence for the source if several paths refuse the same PSN: one that ends the
/// connection, then a longer RNR wait, then a sequence NAK, because a repetition after the wait serves both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Refusal(u8);

const SEQUENCE: u8 = 1;
const RNR: u8 = 2;
const FATAL: u8 = RNR + 32;
/// Added to a NAK that the source is not sent.
const HELD: u8 = 0x80;

impl Refusal {
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn of(syndrome: Syndrome) -> Self {
        Self(match syndrome {
            Syndrome::Ack => 0,
            Syndrome::Nak(NakCode::PsnSequenceError) => SEQUENCE,
            // Code 0 is the longest wait; the waits of all other codes grow with their number.
            Syndrome::RnrNak(timer) => RNR + (timer.code().wrapping_sub(1) & 0x1F),
            Syndrome::Nak(NakCode::InvalidRequest) => FATAL,
            Syndrome::Nak(NakCode::RemoteAccessError) => FATAL + 1,
            Syndrome::Nak(NakCode::RemoteOperationalError) => FATAL + 2,
        })
    }

    /// The AETH syndrome of the NAK; `None` for no NAK.
    pub(super) const fn syndrome(self) -> Option<Syndrome> {
        Some(match self.0 & !HELD {
            0 => return None,
            SEQUENCE => Syndrome::Nak(NakCode::PsnSequenceError),
            RNR..FATAL => Syndrome::RnrNak(RnrTimer::new(self.0 - RNR + 1)),
            FATAL => Syndrome::Nak(NakCode::InvalidRequest),
            35 => Syndrome::Nak(NakCode::RemoteAccessError),
            _ => Syndrome::Nak(NakCode::RemoteOperationalError),
        })
    }

    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// True if it has ended the connection.
    pub(super) const fn is_fatal(self) -> bool {
        self.0 >= FATAL
    }

    /// The same, but the source is not sent it.
    pub(super) const fn held(self) -> Self {
        Self(self.0 | HELD)
    }

    /// What the source is sent of it.
    pub(super) const fn to_source(self) -> Self {
        match self.0 < HELD {
            true => self,
            false => Self::NONE,
        }
    }

    /// Clears the NAK because the source has gone back, unless it has ended the connection.
    pub(super) const fn serve(&mut self) {
        if !self.is_fatal() {
            self.0 = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::Nanos;

    const CODES: [NakCode; 4] = [
        NakCode::PsnSequenceError,
        NakCode::InvalidRequest,
        NakCode::RemoteAccessError,
        NakCode::RemoteOperationalError,
    ];

    #[test]
    fn each_refusal_comes_back_as_it_went_in() {
        let rnr = (0..32).map(|code| Syndrome::RnrNak(RnrTimer::new(code)));
        for syndrome in rnr.chain(CODES.map(Syndrome::Nak)) {
            assert_eq!(Refusal::of(syndrome).syndrome(), Some(syndrome));
        }
        assert!(Refusal::of(Syndrome::Ack).is_none() && Refusal::NONE.syndrome().is_none());
    }

    #[test]
    fn fatal_is_above_rnr_by_wait_and_rnr_above_sequence() {
        let rank = |syndrome| match syndrome {
            Syndrome::Ack => (0, Nanos::ZERO),
            Syndrome::Nak(NakCode::PsnSequenceError) => (1, Nanos::ZERO),
            Syndrome::RnrNak(timer) => (2, timer.wait()),
            Syndrome::Nak(_) => (3, Nanos::ZERO),
        };
        let all = || {
            (0..32)
                .map(|code| Syndrome::RnrNak(RnrTimer::new(code)))
                .chain(CODES.map(Syndrome::Nak))
        };
        for a in all() {
            for b in all().filter(|b| rank(a) < rank(*b)) {
                assert!(Refusal::of(a) < Refusal::of(b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn only_a_fatal_refusal_outlives_the_source_going_back() {
        for code in CODES {
            let mut refusal = Refusal::of(Syndrome::Nak(code));
            refusal.serve();
            assert_eq!(refusal.is_none(), !code.is_fatal());
        }
    }

    /// It has ended the connection as much, and is shown as it is.
    #[test]
    fn the_source_is_sent_nothing_of_a_held_refusal() {
        for code in CODES.into_iter().filter(|code| code.is_fatal()) {
            let syndrome = Syndrome::Nak(code);
            let refusal = Refusal::of(syndrome);
            assert_eq!(refusal.to_source(), refusal);
            let mut held = refusal.held();
            held.serve();
            assert!(held.is_fatal() && held.to_source().is_none());
            assert_eq!(held.syndrome(), Some(syndrome));
        }
    }

    #[test]
    fn an_entry_is_seven_bytes() {
        assert_eq!(core::mem::size_of::<Entry>(), 7);
    }
}
