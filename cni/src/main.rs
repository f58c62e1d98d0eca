//! The CNI plugin's process: variables and stdin in, one JSON document and an exit code out.

use apiary_cni::Environment;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    match (program.rsplit('/').next().unwrap_or_default(), args.first().map(String::as_str)) {
        (_, Some("remove-link")) => {
            let index = args.get(1).and_then(|index| index.parse().ok());
            return match index.map(apiary_cni::remove_link_behind) {
                Some(Ok(())) => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            };
        }
        (_, Some("init")) => return init(&args[1..], ExitCode::FAILURE),
        // These of Cilium's image report failures and never fail.
        ("cilium-mount", _) => return init(&prefixed("mount-cgroup", args), ExitCode::SUCCESS),
        ("cilium-sysctlfix", _) => return init(&prefixed("sysctl-overwrites", args), ExitCode::SUCCESS),
        _ => {}
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

fn prefixed(step: &str, args: Vec<String>) -> Vec<String> {
    [step.to_owned()].into_iter().chain(args).collect()
}

/// Runs a step of the agent's pod.
fn init(args: &[String], failure: ExitCode) -> ExitCode {
    match apiary_cni::init::run(args, &|name| std::env::var(name).ok(), &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            failure
        }
    }
}
