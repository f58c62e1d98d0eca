//! The monitor's events while a probe is on its way.

use std::io::{self, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use monitor_events::gob::{LOST, Payload, Reader, SAMPLE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::observe::{Step, StepEvent, step};
use super::probe::{Answer, Packet, Probe, Protocol};
use crate::client::Agent;

/// How long events of a packet may still come once its outcome is known.
const GRACE: Duration = Duration::from_millis(150);

/// The events of the monitor.
pub(super) struct Events {
    stream: UnixStream,
    reader: Reader,
    /// Events that the monitor could not deliver.
    pub(super) lost: u64,
}

impl Events {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, reader: Reader::default(), lost: 0 })
    }

    /// Waits until the rings are open: programs report nothing before.
    pub(super) fn wait_ready(&self, agent: &mut Agent) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let status: Value = agent.get("/healthz")?;
            if status["nodeMonitor"].is_object() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("the agent does not open the rings of events: see apiary status");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the steps of the probe and its answer; waits until there is one, or the packet is dropped, or the time is
    /// over.
    pub(super) fn follow(
        &mut self,
        probe: &Probe,
        timeout: Duration,
    ) -> anyhow::Result<(Vec<Step>, Option<Answer>)> {
        let (mut steps, mut answer) = (Vec::new(), None);
        let mut deadline = Instant::now() + timeout;
        loop {
            let before = steps.len();
            self.read(&probe.packet, &mut steps)?;
            let is_dropped = steps[before..].iter().any(|step| matches!(step.event, StepEvent::Drop { .. }));
            let is_answered = answer.is_none() && {
                answer = probe.answer();
                answer.is_some()
            };
            let now = Instant::now();
            if is_dropped || is_answered {
                deadline = deadline.min(now + GRACE);
            }
            let Some(left) = deadline.checked_duration_since(now).filter(|left| !left.is_zero()) else {
                return Ok((steps, answer));
            };
            let wait = Timespec::try_from(left).context("the time is too long")?;
            let mut all = vec![PollFd::new(&self.stream, PollFlags::IN)];
            let socket = probe.fd();
            // A socket with an answer stays ready.
            if answer.is_none() {
                let flags =
                    if probe.packet.protocol == Protocol::Tcp { PollFlags::OUT } else { PollFlags::IN };
                all.push(PollFd::new(&socket, flags));
            }
            match poll(&mut all, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the events that have come, and appends those of the packet. A packet that is sent again adds nothing.
    fn read(&mut self, packet: &Packet, steps: &mut Vec<Step>) -> anyhow::Result<()> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("the agent has closed the connection of the monitor"),
                Ok(count) => self.reader.push(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("the connection to the monitor failed"),
            }
            while let Some(value) =
                self.reader.next_value().context("the monitor's stream cannot be decoded")?
            {
                let payload = Payload::from(value);
                match payload.kind {
                    LOST => self.lost += payload.lost,
                    SAMPLE => {
                        let event = monitor_events::decode(&payload.data).ok();
                        let found = event.and_then(|event| step(&event, packet));
                        steps.extend(found.filter(|found| !steps.contains(found)));
                    }
                    _ => {}
                }
            }
        }
    }
}
