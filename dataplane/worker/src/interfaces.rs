//! The thread that watches the interfaces of ports. It opens and closes sockets, for which workers must not wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use castnet_port::{InterfaceWatch, Reattach, Waker};
use castnet_wire::PortId;
use crossbeam::channel::Sender;

use crate::control::{Clock, SharedControl};
use crate::housekeeping::Note;
use crate::startup::join;

pub(crate) struct InterfaceThread {
    thread: JoinHandle<()>,
    is_ended: Arc<AtomicBool>,
    waker: Waker,
}

impl InterfaceThread {
    /// `sides`: for each port those of all workers. `None` if no port is on an interface.
    pub(crate) fn start(
        sides: Vec<Vec<Arc<Reattach>>>,
        shared: &SharedControl,
        notes: &Sender<Note>,
    ) -> io::Result<Option<Self>> {
        if sides.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let watch = InterfaceWatch::new(sides)?;
        let (waker, is_ended) = (watch.waker(), Arc::new(AtomicBool::new(false)));
        let ports = shared.infos.iter().map(|info| info.id).collect();
        let (clock, notes, ended) = (shared.clock.clone(), notes.clone(), is_ended.clone());
        let thread = thread::Builder::new().name("castnet-links".into());
        Ok(Some(Self {
            thread: thread.spawn(move || run(watch, ports, &clock, &notes, &ended))?,
            is_ended,
            waker,
        }))
    }

    pub(crate) fn stop(self) {
        self.is_ended.store(true, Ordering::Release);
        self.waker.wake();
        join(vec![self.thread]);
    }
}

fn run(
    mut watch: InterfaceWatch,
    ports: Vec<PortId>,
    clock: &Clock,
    notes: &Sender<Note>,
    is_ended: &AtomicBool,
) {
    while !is_ended.load(Ordering::Acquire) {
        let at = clock.now();
        watch.poll(at, &mut |position, detached| {
            let Some(port) = ports.get(position).copied() else {
                return;
            };
            let reason = detached.map(ToString::to_string);
            // An error means that the dataplane ends.
            let _ = notes.send(Note::Interface { at, port, reason });
        });
        watch.sleep(at, || is_ended.load(Ordering::Acquire));
    }
}
