//! `apiary shell` on a terminal, against an agent that records its requests.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const PROMPT: &str = "apiary> ";
const TIMEOUT: Duration = Duration::from_secs(10);

/// A shell on a terminal that the test controls.
struct Terminal {
    master: File,
    child: Child,
    /// Output that no call has consumed yet.
    output: String,
    /// Commands as the agent received them, without those of completion.
    commands: Receiver<String>,
    _folder: tempfile::TempDir,
}

/// Answers each command with itself; `hang` never ends.
fn serve(stream: UnixStream, seen: &std::sync::mpsc::Sender<String>) {
    let mut write = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = match line.as_str() {
            "help -a db/s" => "db/show\n<<end>>\n".to_owned(),
            "db/show --autocomplete='n'" => "db/show nodes\ndb/show node-addresses\n<<end>>\n".to_owned(),
            "hang" => "hanging\n".to_owned(),
            line => format!("{line} done\n<<end>>\n"),
        };
        if !line.contains("--autocomplete") && !line.starts_with("help") {
            seen.send(line).unwrap();
        }
        write.write_all(answer.as_bytes()).unwrap();
    }
}

impl Terminal {
    fn new() -> Terminal {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("shell.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (seen, commands) = channel();
        #[expect(clippy::disallowed_methods, reason = "the server of a test, which ends with it")]
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = seen.clone();
                std::thread::spawn(move || serve(stream, &seen));
            }
        });
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        // Ctrl-C is a signal only for the terminal's own session.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_apiary"), "shell", "--shell-sock-path"])
            .arg(&socket)
            .env("TERM", "xterm")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave)
            .spawn()
            .unwrap();
        Terminal { master: master.into(), child, output: String::new(), commands, _folder: folder }
    }

    /// Reads until the text appears, and drops the output before it.
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.output.find(text) {
                self.output.drain(..at + text.len());
                return;
            }
            let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
            let mut polled = [PollFd::new(&self.master, PollFlags::IN)];
            assert!(poll(&mut polled, Some(&timeout)).unwrap() > 0, "no {text:?} in {:?}", self.output);
            let mut bytes = [0; 4096];
            let count = self.master.read(&mut bytes).unwrap();
            self.output += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Types at the prompt; returns the command that the agent received.
    fn enter(&mut self, keys: &str) -> String {
        self.master.write_all(keys.as_bytes()).unwrap();
        self.master.write_all(b"\r").unwrap();
        self.commands.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{keys:?}: {error}"))
    }

    /// Types a line and waits for the prompt after its answer.
    fn run(&mut self, keys: &str) -> String {
        let command = self.enter(keys);
        self.wait_for(" done");
        self.wait_for(PROMPT);
        command
    }
}

#[test]
fn lines_are_edited_recalled_completed_and_interrupted() {
    let mut terminal = Terminal::new();
    terminal.wait_for(PROMPT);

    // Left, home, right, end, erase a word, backspace, delete.
    let keys = "hllo\x1b[D\x1b[D\x1b[D\x01\x1b[Ce\x05 wörld x\x17\x7f!\x1b[1~\x1b[3~H";
    assert_eq!(terminal.run(keys), "Hello wörld!");
    // Erase to the end, and to the beginning.
    assert_eq!(terminal.run("abc\x1b[D\x0b"), "ab");
    assert_eq!(terminal.run("abc\x1b[D\x15"), "c");

    for line in ["one", "two", "two"] {
        assert_eq!(terminal.run(line), line);
    }
    assert_eq!(terminal.run("dr\x1b[A"), "two");
    assert_eq!(terminal.run("\x1b[A\x1b[A"), "one", "equal lines are kept once");
    assert_eq!(terminal.run("dr\x1b[A\x1b[A\x1b[B\x1b[B"), "dr", "the draft is kept");

    assert_eq!(terminal.run("db/s\t"), "db/show");
    assert_eq!(terminal.run("db/s\tn\t"), "db/show node");

    // Ctrl-C discards the line, or ends the command.
    terminal.master.write_all(b"forgotten\x03").unwrap();
    terminal.wait_for(PROMPT);
    assert_eq!(terminal.run("next"), "next");
    assert_eq!(terminal.enter("hang"), "hang");
    terminal.wait_for("hanging");
    terminal.master.write_all(b"\x03").unwrap();
    terminal.wait_for(PROMPT);
    assert_eq!(terminal.run("after"), "after");

    terminal.master.write_all(b"\x04").unwrap();
    assert!(terminal.child.wait().unwrap().success());
}
