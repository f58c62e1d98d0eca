//! The shell over its socket: answers, misbehaving clients, permissions.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hive::prelude::*;
use hive_command::{Call, Command, Output};

/// The number of running commands that never end.
static HANGING: AtomicUsize = AtomicUsize::new(0);

struct Hanging;

impl Drop for Hanging {
    fn drop(&mut self) {
        HANGING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn commands() -> Members<Command> {
    let text = |name: &'static str, text: &'static str| {
        Command::new(name, "says something", move |_: Call| async move { Ok(Output::text(text)) })
    };
    Members(vec![
        text("say", "hello\n"),
        text("mean", "x<<end>>\n<<error>>\nmore\n"),
        Command::new("notes", "writes to the log", |call: Call| async move {
            call.log("noted");
            Ok(Output::none())
        }),
        Command::new("panics", "panics", |_: Call| async { panic!("on purpose") }),
        Command::new("save", "writes a file", |call: Call| async move {
            call.write(call.exactly::<1>()?[0], "x")?;
            Ok(Output::none())
        }),
        Command::new("hangs", "never ends", |_: Call| {
            HANGING.fetch_add(1, Ordering::SeqCst);
            let hanging = Hanging;
            async move {
                let _hanging = hanging;
                std::future::pending().await
            }
        }),
        Command::new("floods", "never stops talking", |call: Call| async move {
            loop {
                call.log("x".repeat(1000));
                call.drained().await;
                tokio::task::yield_now().await;
            }
        }),
    ])
}

/// Runs a test against a shell, on a separate thread as clients are separate processes.
fn with_shell(test: impl FnOnce(&Path) + Send + 'static) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("run/shell.sock");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cells = [module("talker", "Talks", [provide(commands)]), hive_shell::cell()];
        let mut hive = TestHive::new(cells).set("shell-sock-path", socket.display());
        hive.start().await;
        let path = socket.clone();
        hive.until("the socket", || path.exists()).await;
        let result = tokio::task::spawn_blocking(move || test(&path)).await;
        hive.stop().await;
        result.unwrap();
        assert!(!socket.exists(), "a stop removes the socket");
    });
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&self, line: &str) {
        self.0.get_ref().write_all(line.as_bytes()).unwrap();
    }

    /// Reads an answer with its end mark.
    fn answer(&mut self) -> String {
        let mut answer = String::new();
        while !answer.ends_with("<<end>>\n") && !answer.ends_with("<<error>>\n") {
            assert!(self.0.read_line(&mut answer).unwrap() > 0, "closed after {answer:?}");
        }
        answer
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(&format!("{line}\n"));
        self.answer()
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn answers_are_those_of_the_protocol() {
    with_shell(|socket| {
        let mode = std::fs::metadata(socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut client = Client::new(socket);
        assert_eq!(client.ask("say"), "[stdout]\nhello\n<<end>>\n");
        assert_eq!(client.ask("notes"), "noted\n<<end>>\n");
        assert_eq!(client.ask("nosuch a"), "<stdin>:0: nosuch a: unknown command<<error>>\n");
        assert_eq!(client.ask("say 'x"), "unterminated quoted argument<<error>>\n");
        assert_eq!(client.ask(""), "<<end>>\n");
        assert_eq!(client.ask("# nothing"), "<<end>>\n");
        assert_eq!(client.ask("panics"), "<stdin>:0: panics: panicked: on purpose<<error>>\n");
        assert_eq!(client.ask("help -a s"), "[stdout]\nsave\nsay\n<<end>>\n");
        assert!(client.ask("say --autocomplete=''").ends_with("<<end>>\n"));
        assert_eq!(client.ask("nosuch --autocomplete='x'"), "<<end>>\n", "a completion is no error");
        assert_eq!(client.ask("mean"), "[stdout]\nx<<end>> \n<<error>> \nmore\n<<end>>\n");
        // Commands that reach programs or files of the machine are absent.
        for command in ["exec id", "cat /etc/passwd", "cp a b", "env"] {
            assert!(client.ask(command).contains("unknown command"), "{command}");
        }
        assert!(client.ask("save /etc/x").contains("only files directly in /tmp"));
        // The sequence that Cilium's client sends for a single command.
        client.send("say\nexit\n");
        assert_eq!(client.answer(), "[stdout]\nhello\n<<end>>\n");
        assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_command_ends_with_its_client() {
    with_shell(|socket| {
        let client = Client::new(socket);
        client.send("hangs\n");
        until("the command runs", || HANGING.load(Ordering::SeqCst) == 1);
        drop(client);
        until("the command has ended", || HANGING.load(Ordering::SeqCst) == 0);
    });
}

#[test]
fn clients_that_flood_or_hang_do_not_affect_others() {
    with_shell(|socket| {
        // Unread output, endless lines, commands whose answers are not read.
        let flooded = Client::new(socket);
        flooded.send("floods\n");
        let long = Client::new(socket);
        let _closed = long.0.get_ref().write_all(&vec![b'x'; 1 << 20]);
        let many = Client::new(socket);
        many.0.get_ref().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let _blocked = many.0.get_ref().write_all("say\n".repeat(100_000).as_bytes());
        let idle: Vec<Client> = (0..10).map(|_| Client::new(socket)).collect();
        let mut client = Client::new(socket);
        assert_eq!(client.ask("say"), "[stdout]\nhello\n<<end>>\n");
        // A client beyond the limit gets an error; slots are free again when other clients have disconnected.
        let more: Vec<Client> = (0..10).map(|_| Client::new(socket)).collect();
        assert!(Client::new(socket).answer().contains("16 shells are open"));
        assert_eq!(client.ask("say"), "[stdout]\nhello\n<<end>>\n");
        drop((idle, more, flooded, many));
        until("there is room again", || {
            let client = UnixStream::connect(socket).unwrap();
            (&client).write_all(b"say\nexit\n").is_ok_and(|()| {
                let mut answer = String::new();
                (&client).read_to_string(&mut answer).is_ok() && answer.contains("hello")
            })
        });
    });
}

#[test]
fn a_socket_of_a_killed_agent_is_replaced_and_a_served_one_is_not() {
    with_shell(|socket| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut second = TestHive::new(hive_shell::cell()).set("shell-sock-path", socket.display());
            second.start().await;
            let tree: Arc<hive::HealthTree> = second.hive().health().clone();
            let mut changes = tree.watch();
            while tree.at("shell.job-listener").is_none_or(|status| status.level != Level::Degraded) {
                tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.unwrap().unwrap();
            }
            let status = second.health("shell.job-listener");
            assert!(status.error.contains("another agent serves"), "{status:?}");
            second.stop().await;
        });
        assert_eq!(Client::new(socket).ask("say"), "[stdout]\nhello\n<<end>>\n");
    });
    let folder = tempfile::tempdir().unwrap();
    let old: PathBuf = folder.path().join("shell.sock");
    drop(std::os::unix::net::UnixListener::bind(&old).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut hive = TestHive::new(hive_shell::cell()).set("shell-sock-path", old.display());
        hive.start().await;
        hive.until("the socket to be another", || UnixStream::connect(&old).is_ok()).await;
        hive.stop().await;
    });
}
