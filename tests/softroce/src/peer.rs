//! Peers as the test sees them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::protocol::{Answer, Ask, Ended};

/// How long a peer may take for what does not wait for others.
const PROMPT: Duration = Duration::from_secs(60);

/// What a peer's QP is towards the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The QP's number.
    pub qpn: u32,
    /// Virtual address of its memory.
    pub va: u64,
    /// Key of its memory.
    pub rkey: u32,
    /// Bytes of its memory.
    pub bytes: usize,
}

/// A host that does what it is asked.
pub struct Peer {
    name: String,
    /// Its IPv4 address on the data network.
    pub ip: String,
    /// Its Ethernet address there.
    pub mac: String,
    /// The largest path MTU of its device.
    pub pmtu: u32,
    lines: Receiver<String>,
    questions: Box<dyn Write + Send>,
    child: Option<Child>,
    /// Questions not yet answered.
    open: usize,
}

impl Peer {
    /// The peer at the other end of a connection that has told its name already.
    ///
    /// # Errors
    /// It does not say who it is.
    pub fn over(name: &str, stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let reader = stream.try_clone()?;
        Self::greet(name, reader, Box::new(stream), None)
    }

    /// Starts `command`, which is a peer on its stdin and stdout.
    ///
    /// # Errors
    /// It does not start, or does not say who it is.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name} has no stdin or stdout");
        };
        Self::greet(name, stdout, Box::new(stdin), Some(child))
    }

    fn greet(
        name: &str,
        from: impl Read + Send + 'static,
        questions: Box<dyn Write + Send>,
        child: Option<Child>,
    ) -> Result<Self> {
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                let Ok(line) = line else { break };
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let mut peer = Self {
            name: name.to_owned(),
            ip: String::new(),
            mac: String::new(),
            pmtu: 0,
            lines,
            questions,
            child,
            open: 1,
        };
        match peer.answer(PROMPT)? {
            Answer::Hello { ip, mac, pmtu } => {
                (peer.ip, peer.mac, peer.pmtu) = (ip, mac, pmtu);
                Ok(peer)
            }
            other => bail!("{name} began with {other:?}"),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks, and leaves the answer for later.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn ask(&mut self, ask: &Ask) -> Result<()> {
        let line = serde_json::to_string(ask)?;
        writeln!(self.questions, "{line}")
            .and_then(|()| self.questions.flush())
            .with_context(|| format!("asking {}", self.name))?;
        self.open += 1;
        Ok(())
    }

    /// The answer to the oldest question.
    ///
    /// # Errors
    /// The peer is gone or silent, or could not do it.
    pub fn answer(&mut self, within: Duration) -> Result<Answer> {
        if self.open == 0 {
            bail!("{} was asked nothing", self.name);
        }
        let line = self.lines.recv_timeout(within).map_err(|e| match e {
            RecvTimeoutError::Timeout => anyhow::anyhow!("{} did not answer within {within:?}", self.name),
            RecvTimeoutError::Disconnected => anyhow::anyhow!("{} is gone", self.name),
        })?;
        self.open -= 1;
        match serde_json::from_str(&line).with_context(|| format!("{}: {line}", self.name))? {
            Answer::Failed(why) => bail!("{}: {why}", self.name),
            answer => Ok(answer),
        }
    }

    /// Asks for what needs no waiting.
    ///
    /// # Errors
    /// As [`Peer::answer`].
    pub fn does(&mut self, ask: &Ask) -> Result<Answer> {
        self.ask(ask)?;
        self.answer(PROMPT)
    }

    /// Makes its QP, with `bytes` of memory.
    ///
    /// # Errors
    /// As [`Peer::answer`].
    pub fn create(&mut self, bytes: usize) -> Result<Connected> {
        match self.does(&Ask::Create { bytes })? {
            Answer::Created { qpn, va, rkey } => Ok(Connected { qpn, va, rkey, bytes }),
            other => bail!("{}: {other:?}", self.name),
        }
    }

    /// The answer to a question that waits: how a work request ended.
    ///
    /// # Errors
    /// It did not end in time, or as [`Peer::answer`].
    pub fn ended(&mut self, within: Duration) -> Result<Ended> {
        match self.answer(within + PROMPT)? {
            Answer::Ended(Some(ended)) => Ok(ended),
            Answer::Ended(None) => bail!("{}: nothing ended within {within:?}", self.name),
            other => bail!("{}: {other:?}", self.name),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A peer that is gone already cannot be asked.
        let _ = self.ask(&Ask::End);
        if let Some(child) = &mut self.child {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(2) {
                if let Ok(Some(_)) = child.try_wait() {
                    return;
                }
                nix::poll::poll(&mut [], 10u8).ok();
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
