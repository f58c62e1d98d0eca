//! Becomes the process of a container: `container FILE`, or runs a program beside the process PID: `container FILE PID`.

use std::process::ExitCode;

use test_kit::Container;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (file, pid) = (arguments.next().unwrap_or_default(), arguments.next());
    let run = || -> std::io::Result<u8> {
        let container = Container::parse(&std::fs::read_to_string(&file)?)?;
        match pid.and_then(|pid| pid.parse().ok()) {
            None => container.become_it().map(|never| match never {}),
            Some(pid) => {
                let code = container.run_beside(pid)?.code();
                Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
            }
        }
    };
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "container {file}: {error}");
            ExitCode::from(125)
        }
    }
}
