//! Live traces and captures: one thread per stream passes frames from the dataplane to the client, at most
//! [`TAPS_MAX`](castnet_worker::engine::TAPS_MAX) at once.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use castnet_proto::v1;
use castnet_wire::{FrameFilter, Nanos};
use castnet_worker::{Dataplane, TapStream};
use crossbeam::channel::RecvTimeoutError;
use tokio::sync::mpsc;
use tonic::Status;

use crate::shell::status::tap_refused;
use crate::state::view;

/// Messages that wait for a slow client.
const STREAM_DEPTH: usize = 256;
/// How often a thread checks whether its client is connected.
const LOOK: Duration = Duration::from_millis(100);
/// How often it checks whether a slow client has read.
const RETRY: Duration = Duration::from_millis(1);
/// After this time without a read while frames wait, a client is disconnected.
const PATIENCE: Duration = Duration::from_secs(5);
type Out<T> = mpsc::Receiver<Result<T, Status>>;

/// Streams traces of the next `count` live frames that match `filter`.
pub(crate) fn trace(
    dataplane: &Arc<Dataplane>,
    filter: FrameFilter,
    count: u64,
) -> Result<Out<v1::FrameTrace>, Status> {
    let stream = dataplane
        .trace_live(filter, count)
        .map_err(|e| tap_refused(e, "filter.port"))?;
    carry("castnet-trace", stream, |trace, lost| view::trace(&trace, lost))
}

/// Streams copies of the next `count` frames that match `filter`.
pub(crate) fn capture(
    dataplane: &Arc<Dataplane>,
    filter: FrameFilter,
    snap_length: usize,
    count: u64,
) -> Result<Out<v1::CapturedFrame>, Status> {
    let length_max = if snap_length == 0 { usize::MAX } else { snap_length };
    let stream = dataplane
        .capture(filter, length_max, count)
        .map_err(|e| tap_refused(e, "filter.port"))?;
    // Asked once: the order of frames outlives a step of the machine's clock.
    let start = dataplane.time_of_day(Nanos::ZERO);
    let start = start.duration_since(UNIX_EPOCH).unwrap_or_default();
    carry("castnet-capture", stream, move |captured, lost| {
        let at = start + Duration::from_nanos(captured.at.0);
        view::captured(captured, at.as_nanos() as u64, lost)
    })
}

/// Forwards `stream` to the returned receiver until the stream ends, the client disconnects, or the client does not
/// read for [`PATIENCE`]. Meanwhile the dataplane counts lost frames.
fn carry<T: Send + 'static, M: Send + 'static>(
    name: &str,
    mut stream: TapStream<T>,
    message: impl Fn(T, u64) -> M + Send + 'static,
) -> Result<Out<M>, Status> {
    // One entry is reserved for the final status.
    let (to, from) = mpsc::channel(STREAM_DEPTH + 1);
    let work = move || {
        loop {
            let item = match stream.recv_timeout(LOOK) {
                Ok(item) => item,
                Err(RecvTimeoutError::Timeout) if !to.is_closed() => continue,
                Err(_) => return,
            };
            let full_since = Instant::now();
            while to.capacity() <= 1 && !to.is_closed() {
                if full_since.elapsed() >= PATIENCE {
                    let _ = to.try_send(Err(too_slow(&stream)));
                    return;
                }
                std::thread::sleep(RETRY);
            }
            if to.try_send(Ok(message(item, stream.lost()))).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(|error| Status::resource_exhausted(format!("no thread: {error}")))?;
    Ok(from)
}

/// The status for a client that did not read in time. The current frame is lost too.
fn too_slow<T>(stream: &TapStream<T>) -> Status {
    let lost = stream.lost() + stream.waiting() as u64 + 1;
    Status::resource_exhausted(format!(
        "ended by the switch: nothing was taken for {} s while frames waited; {lost} frames were lost",
        PATIENCE.as_secs()
    ))
}
