//! Live traces and captures: a thread per stream carries them from the dataplane to the client. The dataplane has one
//! place for each kind, so there are two such threads at most.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use castnet_proto::convert::{FrameFilter, refuse};
use castnet_proto::v1;
use castnet_wire::DropReason;
use castnet_wire::roce::IpAddrs;
use castnet_worker::engine::{CaptureFilter, Captured, Seen, Trace, TraceFilter, Verdict};
use castnet_worker::{Dataplane, TapError, TapStream};
use crossbeam::channel::RecvTimeoutError;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::view;

/// Messages that wait for a slow client.
const STREAM_DEPTH: usize = 256;
/// How often a thread looks whether its client is still there.
const LOOK: Duration = Duration::from_millis(100);

type Out<T> = mpsc::Receiver<Result<T, Status>>;

/// What the dataplane's own filters do not look at.
#[derive(Clone, Copy)]
struct Rest {
    src_ip: Option<Ipv4Addr>,
    dst_ip: Option<Ipv4Addr>,
    reason: Option<DropReason>,
}

impl Rest {
    fn of(filter: &FrameFilter) -> Self {
        Self {
            src_ip: filter.src_ip,
            dst_ip: filter.dst_ip,
            reason: filter.drop_reason,
        }
    }

    fn wants(&self, frame: &[u8], dropped: Option<DropReason>) -> bool {
        let by_reason = self.reason.is_none() || self.reason == dropped;
        let by_address = || {
            let (src, dst) = addresses(frame).unzip();
            self.src_ip.is_none_or(|ip| src == Some(ip)) && self.dst_ip.is_none_or(|ip| dst == Some(ip))
        };
        by_reason && ((self.src_ip.is_none() && self.dst_ip.is_none()) || by_address())
    }

    /// How many frames the dataplane is asked for so that `count` remain: all, where some are sorted out here.
    fn to_ask(self, count: u64) -> u64 {
        let none = self.src_ip.is_none() && self.dst_ip.is_none() && self.reason.is_none();
        if none { count } else { u64::MAX }
    }
}

/// The IPv4 addresses of a frame, source and destination.
fn addresses(frame: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    match castnet_wire::parse_frame(frame, frame.len()).ok()? {
        castnet_wire::Parsed::Roce(roce) => match roce.ip {
            IpAddrs::V4 { src, dst } => Some((src, dst)),
            _ => None,
        },
        castnet_wire::Parsed::Ipv4 { header, .. } => Some((header.src, header.dst)),
        castnet_wire::Parsed::Arp(arp) => Some((arp.sender_ip, arp.target_ip)),
        _ => None,
    }
}

/// Streams the ways of the next `count` live frames that `filter` wants.
pub(crate) fn trace(
    dataplane: &Arc<Dataplane>,
    filter: &FrameFilter,
    count: u64,
) -> Result<Out<v1::FrameTrace>, Status> {
    let drops = filter.drops_only || filter.drop_reason.is_some();
    let armed = TraceFilter {
        port: filter.port,
        group: filter.mcst_id,
        drops,
    };
    let rest = Rest::of(filter);
    let stream = dataplane
        .trace_live(armed, rest.to_ask(count))
        .map_err(|e| refused(e, "filter.port"))?;
    let wanted = move |trace: &Trace| {
        let dropped = match trace.verdict {
            Verdict::Dropped(reason) => Some(reason),
            _ => None,
        };
        rest.wants(&trace.frame, dropped)
    };
    carry("castnet-trace", stream, count, wanted, |trace, _| {
        view::trace(&trace)
    })
}

/// Streams copies of the next `count` frames that `filter` wants.
pub(crate) fn capture(
    dataplane: &Arc<Dataplane>,
    filter: &FrameFilter,
    snap_length: usize,
    count: u64,
) -> Result<Out<v1::CapturedFrame>, Status> {
    let drops = filter.drops_only || filter.drop_reason.is_some();
    let rest = Rest::of(filter);
    let length_max = if snap_length == 0 { usize::MAX } else { snap_length };
    let armed = CaptureFilter {
        port: filter.port,
        group: filter.mcst_id,
        drops,
        length_max,
    };
    let stream = dataplane
        .capture(armed, rest.to_ask(count))
        .map_err(|e| refused(e, "filter.port"))?;
    let wanted = move |captured: &Captured| {
        let dropped = match captured.seen {
            Seen::Dropped(reason) => Some(reason),
            Seen::In | Seen::Out => None,
        };
        rest.wants(&captured.bytes, dropped)
    };
    let clock = dataplane.clone();
    carry("castnet-capture", stream, count, wanted, move |captured, lost| {
        let at = clock
            .time_of_day(captured.at)
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        view::captured(captured, at.as_nanos() as u64, lost)
    })
}

/// Carries what is wanted from `stream` to the receiver that it returns, until there were `count`, the client is gone
/// or the dataplane stops. A client that is too slow makes the dataplane's queue overflow, which is counted there.
fn carry<T: Send + 'static, M: Send + 'static>(
    name: &str,
    mut stream: TapStream<T>,
    count: u64,
    wanted: impl Fn(&T) -> bool + Send + 'static,
    message: impl Fn(T, u64) -> M + Send + 'static,
) -> Result<Out<M>, Status> {
    let (to, from) = mpsc::channel(STREAM_DEPTH);
    let work = move || {
        let mut left = count;
        while left > 0 {
            match stream.recv_timeout(LOOK) {
                Ok(item) if wanted(&item) => {
                    let message = message(item, stream.lost());
                    if to.blocking_send(Ok(message)).is_err() {
                        return;
                    }
                    left -= 1;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if to.is_closed() => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(|error| Status::resource_exhausted(format!("no thread: {error}")))?;
    Ok(from)
}

/// Why frames cannot be watched.
pub(crate) fn refused(error: TapError, port_field: &str) -> Status {
    let text = error.to_string();
    match error {
        TapError::Busy => Status::failed_precondition(text),
        TapError::NoPort(_) => refuse(Code::InvalidArgument, port_field, text),
        _ => Status::unavailable(text),
    }
}
