//! A trait with a fake: the program talks to the world by an interface, and a test puts a fake in its place.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;

trait Thermometer: Send + Sync {
    fn celsius(&self) -> anyhow::Result<f64>;
}

/// The kernel's own thermometer.
#[derive(Object)]
struct Sysfs;

impl Thermometer for Sysfs {
    fn celsius(&self) -> anyhow::Result<f64> {
        let text = std::fs::read_to_string("/sys/class/thermal/thermal_zone0/temp")?;
        Ok(text.trim().parse::<f64>()? / 1000.0)
    }
}

fn watch(thermometer: Arc<dyn Thermometer>, jobs: JobGroup) {
    let look = move |cx: JobCx| {
        let thermometer = thermometer.clone();
        async move {
            match thermometer.celsius()? {
                hot if hot > 80.0 => cx.health.degraded("hot", format_args!("{hot} degrees")),
                fine => cx.health.ok(format_args!("{fine} degrees")),
            }
            Ok(())
        }
    };
    jobs.timer("look", Duration::from_secs(60), look).immediate().add();
}

fn cells() -> Cell {
    let sysfs = module(
        "sysfs",
        "Temperature of the machine",
        [provide_private(|| Sysfs), bind!(Sysfs => dyn Thermometer)],
    );
    bundle([sysfs, module("watch", "Warns of heat", [invoke(watch)])])
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    Hive::builder(cells()).process("HEAT_").main().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Fake(AtomicI64);

    impl Thermometer for Fake {
        fn celsius(&self) -> anyhow::Result<f64> {
            Ok(self.0.load(Ordering::Relaxed) as f64)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn heat_degrades_the_health() {
        let fake = Arc::new(Fake::default());
        let mut hive = TestHive::new(cells()).replace::<dyn Thermometer>(fake.clone());
        hive.start().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(hive.health("watch.timer-job-look").message, "0 degrees");
        fake.0.store(90, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await; // takes no time
        assert_eq!(hive.health("watch.timer-job-look").message, "hot");
        hive.stop().await;
    }
}
