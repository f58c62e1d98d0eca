//! The options, in Cilium's spelling. Changes take effect at the next start.

/// The monitor's socket and queues.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Monitor")]
pub struct MonitorConfig {
    /// Serve the events of the node on monitor1_2.sock
    #[flag(default = true)]
    pub enable_monitor: bool,
    /// Labels of this agent in records of proxies, such as rack=1
    #[flag(default = "")]
    pub agent_labels: Vec<String>,
    /// Messages in the queue of each listener, 32 bytes each beside the events, which all share; 0 for 1,024 per CPU
    #[flag(default = 0)]
    pub monitor_queue_size: u32,
}

/// Messages per CPU, and the limit of all, without an option.
const MESSAGES_PER_CPU: usize = 1024;
const MAX_MESSAGES: usize = 16 << 10;

/// Returns the number of messages in a queue by an option, 0 for a size by CPUs.
#[must_use]
pub fn queue_size(option: u32, cpus: usize) -> usize {
    match option {
        0 => (cpus * MESSAGES_PER_CPU).min(MAX_MESSAGES),
        size => size as usize,
    }
}

impl MonitorConfig {
    /// Returns the number of messages in a listener's queue.
    pub(crate) fn queue_size(&self, cpus: usize) -> usize {
        queue_size(self.monitor_queue_size, cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_sized_by_cpus_unless_an_option_sets_it() {
        let size = |option, cpus| {
            MonitorConfig { enable_monitor: true, agent_labels: Vec::new(), monitor_queue_size: option }
                .queue_size(cpus)
        };
        assert_eq!((size(0, 2), size(0, 64), size(7, 64)), (2048, 16384, 7));
    }
}
