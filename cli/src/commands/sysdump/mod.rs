//! `sysdump`, and the program by the name `cilium-bugtool`: one archive with what a report of a fault needs.
//!
//! `plan` lists what is collected, `collect` runs and copies it into a folder, within limits, `redact` takes secrets out
//! of what passes, `archive` packs the folder.

mod archive;
mod collect;
mod plan;
mod redact;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use archive::ArchiveType;
use clap::{ArgAction, Args};
use collect::{Collector, Limits};
use plan::Plan;
use signal_hook::consts::{SIGINT, SIGTERM};

/// The name by which scripts know the command.
pub(crate) const CILIUM_NAME: &str = "cilium-bugtool";
const DISCLAIMER: &str = "The archive describes this node and what runs on it. Passwords, tokens and private keys are \
                          replaced where they are recognized: read it before you give it to others.";

#[derive(Debug, Args)]
pub(crate) struct SysdumpOptions {
    /// Format of the archive: tar, or gz for a compressed one
    #[arg(
        short = 'o',
        long = "archiveType",
        alias = "archive-type",
        value_name = "TYPE",
        default_value = "tar"
    )]
    archive_type: ArchiveType,
    /// Make an archive; false leaves the folder
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    archive: bool,
    /// Start of the archive's name, such as the name of a pod
    #[arg(long, value_name = "TEXT", default_value = "")]
    archive_prefix: String,
    /// Folder of the archive; - writes it to the standard output
    #[arg(short = 't', long = "tmp", value_name = "PATH", default_value = "/tmp")]
    folder: PathBuf,
    /// Print what would be collected, and collect nothing
    #[arg(long)]
    dry_run: bool,
    /// Time after which a command is killed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go_duration::parse)]
    exec_timeout: Duration,
    /// Number of commands that run side by side; 0 is the number of CPUs
    #[arg(long, value_name = "N", default_value_t = 0)]
    parallel_workers: usize,
    /// Size of everything before compression, in MiB; longer output is cut
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    max_size: u64,
    /// Options of Cilium's tool on parts that this one always collects, leaves out, or does not have; accepted for
    /// the command lines of scripts
    #[command(flatten)]
    _others: OtherOptions,
    /// Folder with the state of endpoints
    #[arg(long, value_name = "PATH", default_value = "/var/run/cilium/state")]
    state_dir: PathBuf,
}

/// Options without effect.
#[derive(Debug, Args)]
struct OtherOptions {
    #[arg(long = "enable-markdown", hide = true)]
    _enable_markdown: bool,
    #[arg(long = "envoy-dump", hide = true, num_args = 0..=1)]
    _envoy_dump: Option<bool>,
    #[arg(long = "envoy-metrics", hide = true, num_args = 0..=1)]
    _envoy_metrics: Option<bool>,
    #[arg(long = "exclude-object-files", hide = true, num_args = 0..=1)]
    _exclude_object_files: Option<bool>,
    #[arg(long = "hubble-metrics", hide = true, num_args = 0..=1)]
    _hubble_metrics: Option<bool>,
    #[arg(long = "hubble-metrics-port", hide = true)]
    _hubble_metrics_port: Option<u16>,
}

/// Collects, packs, and prints where the archive is.
pub(crate) fn run(host: Option<&str>, options: &SysdumpOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let plan = Plan::new(host, &options.state_dir);
    if options.dry_run {
        for item in plan.items() {
            writeln!(out, "{item}")?;
        }
        return Ok(());
    }
    let to_stdout = options.folder.as_os_str() == "-";
    let parent = if to_stdout { std::env::temp_dir() } else { options.folder.clone() };
    // Before the folder is made: a signal must not leave it.
    let interrupted = interruption()?;
    // Only root reads it, and it goes whatever fails below.
    let temporary = tempfile::Builder::new().prefix(".sysdump-").tempdir_in(&parent).with_context(|| {
        format!("cannot make a folder in {}: choose another one with --tmp", parent.display())
    })?;
    let name = name(&options.archive_prefix, SystemTime::now(), temporary.path());
    let folder = temporary.path().join(&name);
    let limits = Limits { time: options.exec_timeout, total: options.max_size.saturating_mul(1 << 20) };
    Collector::new(&folder, limits, interrupted)?.collect(&plan, options.parallel_workers)?;
    let mut errors = io::stderr();
    writeln!(errors, "{DISCLAIMER}")?;
    if !options.archive {
        let kept = parent.join(&name);
        std::fs::rename(&folder, &kept)?;
        return Ok(writeln!(errors, "\nDIRECTORY at {}", kept.display())?);
    }
    if to_stdout {
        return archive::write(options.archive_type, &folder, &name, out);
    }
    let mut file = name.clone();
    file.push(format!(".{}", options.archive_type.extension()));
    let path = parent.join(file);
    archive::write_file(options.archive_type, &folder, &name, &path)?;
    // Cilium's command line reads the path behind these words.
    Ok(writeln!(errors, "\n{} at {}", options.archive_type.title(), path.display())?)
}

/// Returns a flag that the first SIGINT or SIGTERM sets, so that the temporary folder is removed; the second one ends the
/// process.
fn interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, interrupted.clone())?;
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    Ok(interrupted)
}

/// Returns the name of the archive's only folder: `PREFIX-cilium-bugtool-TIME-UNIQUE`.
fn name(prefix: &str, now: SystemTime, temporary: &Path) -> OsString {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = jiff::Timestamp::from_second(seconds.cast_signed()).unwrap_or_default();
    let unique = temporary.to_string_lossy();
    let unique = unique.rsplit('-').next().unwrap_or_default();
    let prefix = if prefix.is_empty() { String::new() } else { format!("{}-", prefix.replace('/', "-")) };
    format!("{prefix}{CILIUM_NAME}-{}-{unique}", time.strftime("%Y%m%d-%H%M%S+0000-UTC")).into()
}
