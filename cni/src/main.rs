//! The CNI plugin's process: variables and stdin in, one JSON document and an exit code out.

use apiary_cni::Environment;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("remove-link") {
        let index = args.next().and_then(|index| index.parse().ok());
        return match index.map(apiary_cni::remove_link_behind) {
            Some(Ok(())) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        };
    }
    let env = Environment::of_process();
    if !env.has_command() {
        let _ = writeln!(std::io::stderr(), "{}", apiary_cni::about());
        return ExitCode::SUCCESS;
    }
    let mut stdin = Vec::new();
    let answer = match std::io::stdin().read_to_end(&mut stdin) {
        Ok(_) => apiary_cni::run(&env, &stdin),
        Err(source) => Err(apiary_cni::Error::Stdin { source }),
    };
    let (text, code) = match answer {
        Ok(Some(text)) => (text, ExitCode::SUCCESS),
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => (error.to_json(), ExitCode::FAILURE),
    };
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}
