//! One RDMA host that does what a test asks for, step by step: on a real device by libibverbs inside a virtual machine, or
//! on the software RNIC. It speaks the lines of `protocol` over TCP to the test, or over its own stdin and stdout.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use castnet_port::{Pool, PoolConfig, PortSpec, Sides};
use castnet_rnic::{
    Access, Completion, LocalSlice, MemoryRegion, QpOptions, QpRemote, RecvWr, Rnic, SendOp, SendWr,
    SoftRnic, SoftRnicConfig,
};
use castnet_softroce_tests::protocol::{Answer, Ask, BEYOND, Ended, MARK, Op, digest, payload};
use castnet_wire::{Pmtu, Psn, Qpn};
use clap::Parser;

/// How long an RNIC sleeps that has nothing to do, before its thread looks at other things.
const NAP: Duration = Duration::from_millis(100);
/// How long an address may take to be resolved.
const RESOLVE: Duration = Duration::from_secs(20);

#[derive(Debug, Parser)]
struct Options {
    /// The software RNIC on this interface; without it, the machine's RDMA device
    #[arg(long)]
    soft: Option<String>,
    /// Its address, where it is the software RNIC
    #[arg(long, default_value = "0.0.0.0")]
    ip: Ipv4Addr,
    /// Where the test listens; without it, stdin and stdout
    #[arg(long)]
    test: Option<SocketAddr>,
    /// Who this is, told first over TCP
    #[arg(long, default_value = "")]
    name: String,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (questions, mut answers): (Box<dyn BufRead + Send>, Box<dyn Write>) = match options.test {
        Some(at) => {
            let mut stream = TcpStream::connect(at).with_context(|| format!("connecting to {at}"))?;
            stream.set_nodelay(true)?;
            writeln!(stream, "{}", options.name)?;
            (Box::new(BufReader::new(stream.try_clone()?)), Box::new(stream))
        }
        None => (
            Box::new(BufReader::new(std::io::stdin())),
            Box::new(std::io::stdout()),
        ),
    };
    // A software RNIC must answer ARP while nobody asks anything; a real one does without its program.
    let (rnic, needs_turns): (Box<dyn Rnic>, bool) = match &options.soft {
        Some(interface) => (Box::new(soft(interface, options.ip)?), true),
        None => (castnet_softroce_tests::device::open()?, false),
    };
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in questions.lines() {
            let Ok(line) = line else { break };
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    let attributes = rnic.attributes();
    let hello = Answer::Hello {
        ip: attributes.ip.to_string(),
        mac: attributes.mac.to_string(),
        pmtu: attributes.active_pmtu.bytes() as u32,
    };
    let mut peer = Peer {
        rnic,
        origin: Instant::now(),
        qp: None,
    };
    let mut say = |answer: &Answer| -> Result<()> {
        writeln!(answers, "{}", serde_json::to_string(answer)?)?;
        Ok(answers.flush()?)
    };
    say(&hello)?;
    while let Some(line) = peer.next_line(&told, needs_turns)? {
        let ask: Ask = serde_json::from_str(&line)?;
        if matches!(ask, Ask::End) {
            break;
        }
        let answer = peer
            .answer(ask)
            .unwrap_or_else(|e| Answer::Failed(format!("{e:#}")));
        say(&answer)?;
    }
    Ok(())
}

/// The software RNIC on an interface of this machine.
fn soft(interface: &str, ip: Ipv4Addr) -> Result<SoftRnic<castnet_port::BoxPort>> {
    let spec: PortSpec = format!("af_packet:{interface},rx=1024,tx=128").parse()?;
    let pool = Pool::new(PoolConfig::default());
    let port = spec.for_rnic(ip).open(&pool, Sides::Both)?;
    Ok(SoftRnic::new(port, pool, SoftRnicConfig::new(ip))?)
}

/// The QP of a peer, and its memory.
#[derive(Clone, Copy)]
struct Connection {
    qpn: Qpn,
    memory: MemoryRegion,
}

struct Peer {
    rnic: Box<dyn Rnic>,
    origin: Instant,
    qp: Option<Connection>,
}

impl Peer {
    /// The next question; the RNIC gets its turns meanwhile.
    fn next_line(&mut self, told: &Receiver<String>, needs_turns: bool) -> Result<Option<String>> {
        loop {
            if !needs_turns {
                return Ok(told.recv().ok());
            }
            match told.try_recv() {
                Ok(line) => return Ok(Some(line)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => {}
            }
            // A question need not wait for the RNIC's nap: it is this thread's own, and short.
            if !self.turn(Duration::ZERO)? {
                match told.recv_timeout(Duration::from_millis(1)) {
                    Ok(line) => return Ok(Some(line)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(None),
                }
            }
        }
    }

    /// Polls the RNIC, and sleeps where there was nothing to do.
    fn turn(&mut self, nap: Duration) -> Result<bool> {
        let now = self.rnic.now();
        let busy = self.rnic.poll(now)?;
        if !busy && !nap.is_zero() {
            self.rnic.wait(nap)?;
        }
        Ok(busy)
    }

    fn at(&self) -> Result<Connection> {
        self.qp.context("there is no QP yet")
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Create { bytes } => {
                let qpn = self.rnic.create_qp(&QpOptions::default())?;
                let memory = self.rnic.register_memory(bytes + BEYOND, Access::REMOTE_WRITE)?;
                self.qp = Some(Connection { qpn, memory });
                Ok(Answer::Created {
                    qpn: qpn.value(),
                    va: memory.va,
                    rkey: memory.rkey,
                })
            }
            Ask::Connect {
                ip,
                qpn,
                sq_psn,
                rq_psn,
                pmtu,
                timeout,
                retry,
                rnr_timer,
            } => {
                let at = self.at()?;
                let remote = QpRemote {
                    sq_psn: Psn::new(sq_psn),
                    rq_psn: Psn::new(rq_psn),
                    pmtu: Pmtu::from_bytes(pmtu).context("a path MTU")?,
                    timeout,
                    retry_cnt: retry,
                    min_rnr_timer: rnr_timer,
                    ..QpRemote::new(ip.parse()?, Qpn::new(qpn))
                };
                self.rnic.connect_qp(at.qpn, &remote, RESOLVE)?;
                Ok(Answer::Done)
            }
            Ask::Mark { length } => {
                let at = self.at()?;
                let mark = vec![MARK; length + BEYOND];
                self.rnic.write_memory(at.memory.key, 0, &mark)?;
                Ok(Answer::Done)
            }
            Ask::Receive { length } => {
                let at = self.at()?;
                let local = slice(&at.memory, length);
                self.rnic.post_recv(at.qpn, RecvWr { wr_id: 0, local })?;
                Ok(Answer::Done)
            }
            Ask::Post {
                op,
                length,
                seed,
                imm,
                va,
                rkey,
            } => {
                let at = self.at()?;
                self.rnic.write_memory(at.memory.key, 0, &payload(seed, length))?;
                let op = match op {
                    Op::Send => SendOp::SendImm(imm),
                    Op::Write => SendOp::WriteImm { va, rkey, imm },
                };
                let wr = SendWr::new(0, op, slice(&at.memory, length));
                self.rnic.post_send(at.qpn, wr)?;
                Ok(Answer::Done)
            }
            Ask::AwaitSent { within_ms } => {
                let ended = self.wait_for(within_ms, |rnic, qpn| rnic.poll_send_completion(qpn))?;
                Ok(Answer::Ended(ended.map(|c| self.ended(&c))))
            }
            Ask::AwaitReceived { length, within_ms } => {
                let ended = self.wait_for(within_ms, |rnic, qpn| rnic.poll_recv_completion(qpn))?;
                let Some(completion) = ended else {
                    return Ok(Answer::Ended(None));
                };
                let mut ended = self.ended(&completion);
                let mut bytes = vec![0; length + BEYOND];
                self.rnic.read_memory(self.at()?.memory.key, 0, &mut bytes)?;
                ended.digest = Some(digest(&bytes[..length]));
                ended.untouched_beyond = bytes[length..].iter().all(|b| *b == MARK);
                Ok(Answer::Ended(Some(ended)))
            }
            Ask::Destroy => {
                if let Some(at) = self.qp.take() {
                    self.rnic.destroy_qp(at.qpn)?;
                    self.rnic.deregister_memory(at.memory.key)?;
                }
                Ok(Answer::Done)
            }
            Ask::End => bail!("it has ended"),
        }
    }

    fn wait_for(
        &mut self,
        within_ms: u64,
        mut next: impl FnMut(&mut dyn Rnic, Qpn) -> Option<Completion>,
    ) -> Result<Option<Completion>> {
        let qpn = self.at()?.qpn;
        let deadline = Instant::now() + Duration::from_millis(within_ms);
        loop {
            if let Some(completion) = next(self.rnic.as_mut(), qpn) {
                return Ok(Some(completion));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            self.turn(rest.min(NAP))?;
        }
    }

    fn ended(&self, completion: &Completion) -> Ended {
        Ended {
            status: format!("{:?}", completion.status),
            bytes: completion.byte_len,
            imm: completion.imm,
            digest: None,
            untouched_beyond: true,
            at_ns: self.origin.elapsed().as_nanos() as u64,
        }
    }
}

fn slice(memory: &MemoryRegion, length: usize) -> LocalSlice {
    LocalSlice {
        key: memory.key,
        offset: 0,
        length: length as u32,
    }
}
