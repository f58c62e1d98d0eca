//! Starts that an agent must refuse.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use test_kit::Process;

use crate::Node;

impl Node {
    /// Starts an agent that must exit within 20 s. Returns the log line with the reason.
    ///
    /// # Panics
    /// If it keeps running, or logs no reason.
    #[must_use]
    pub fn refused_start(&self) -> String {
        let mut agent = Process::start(self.agent_command().stderr(Stdio::piped())).unwrap();
        let mut stderr = agent.child().stderr.take().unwrap();
        let status = agent.wait(Duration::from_secs(120)).expect("it ends by itself");
        let mut reported = String::new();
        stderr.read_to_string(&mut reported).unwrap();
        assert!(!status.success(), "{reported}");
        reported.lines().find(|line| line.contains("level=fatal")).expect("it says why").to_owned()
    }
}
