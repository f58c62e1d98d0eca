//! Memory, descriptors and threads of an agent over time, and whether they grow.
//!
//! Samples are taken at quiet moments only: no pods, no policies, no services, no addresses that rest, so that each is of
//! the same state and a difference is what the cycles in between have left behind. The first third of them does not
//! count: a process that has just started has not touched everything yet, and numbers are kept for a while.
//!
//! Memory is what the allocator has given out ([`Sample::allocated`]). Pages would say less: they come and go by what
//! lies between what, hundreds of kilobytes at a time, which hides a leak of some bytes a cycle for days. It grows if the
//! [slope](Slope) over the cycles is above [`LEAK`] and surely above 0. Descriptors and threads are few and whole: they
//! grow if there are more in each third of the samples than in the one before; of threads more than [`POOL`], as those
//! that wait for the kernel come and go with the load of the machine.

use std::fmt;
use std::fs;

use crate::Node;

/// Bytes a cycle that are a leak. Less than the smallest object that could leak, and its place in a
/// list.
pub const LEAK: f64 = 40.0;

/// Threads that the pool may have more at the end: it has one for each call that waits, and keeps it for a while.
const POOL: u64 = 8;

/// Fewer samples than this say nothing about growth.
const FEWEST: usize = 10;

/// Standard deviations of the interval of a slope: 99 of 100 are inside of it.
const SURE: f64 = 2.576;

/// A sample of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Cycles so far.
    pub cycles: usize,
    /// Bytes that are allocated and not freed.
    pub allocated: u64,
    /// Private pages, in bytes.
    pub private: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// A sample of the node's agent, which exports metrics.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn of(node: &Node, cycles: usize) -> Sample {
        let lines = node.metrics();
        let allocated = lines.iter().find_map(|line| line.strip_prefix("cilium_process_allocated_bytes "));
        let pid = node.agent_pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
        };
        Sample {
            cycles,
            allocated: allocated.expect("the agent counts what it allocates").parse::<f64>().unwrap() as u64,
            private: field("RssAnon:") << 10,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64,
            threads: field("Threads:"),
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sample { cycles, allocated, private, descriptors, threads } = self;
        write!(
            f,
            "{cycles} cycles: {} kB allocated, {} kB private, {descriptors} descriptors, {threads} threads",
            allocated >> 10,
            private >> 10
        )
    }
}

/// How many bytes more each cycle leaves, by Theil and Sen: the median of the slopes between any two samples, which a
/// third of outliers does not move, with the interval that Kendall's test gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Bytes a cycle.
    pub median: f64,
    /// The interval's ends.
    pub between: (f64, f64),
    /// Samples that it is made of.
    pub samples: usize,
    /// Cycles from the first to the last of them.
    pub cycles: usize,
}

impl Slope {
    /// The slope of a value over the samples that count; nothing if they are too few to say.
    #[must_use]
    pub fn of(samples: &[Sample], value: fn(&Sample) -> u64) -> Option<Slope> {
        let counted = counted(samples)?;
        let mut slopes = Vec::new();
        for (at, first) in counted.iter().enumerate() {
            for second in &counted[at + 1..] {
                let cycles = second.cycles.saturating_sub(first.cycles).max(1);
                slopes.push((value(second) as f64 - value(first) as f64) / cycles as f64);
            }
        }
        slopes.sort_by(f64::total_cmp);
        let n = counted.len() as f64;
        let width = SURE * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
        let low = ((slopes.len() as f64 - width) / 2.0).max(0.0) as usize;
        Some(Slope {
            median: slopes[slopes.len() / 2],
            between: (slopes[low], slopes[slopes.len() - 1 - low]),
            samples: counted.len(),
            cycles: counted[counted.len() - 1].cycles - counted[0].cycles,
        })
    }

    /// Whether something is left behind.
    #[must_use]
    pub fn leaks(&self) -> bool {
        self.median > LEAK && self.between.0 > 0.0
    }
}

impl fmt::Display for Slope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slope { median, between: (low, high), samples, cycles } = self;
        write!(
            f,
            "{median:+.1} bytes a cycle ({low:+.1} to {high:+.1}) by {samples} samples over {cycles} cycles"
        )
    }
}

/// The samples that count.
fn counted(samples: &[Sample]) -> Option<&[Sample]> {
    let counted = &samples[samples.len() / 3..];
    (counted.len() >= FEWEST).then_some(counted)
}

/// Why these samples are of something that grows; nothing if they are not, or are too few to say.
#[must_use]
pub fn growth(samples: &[Sample]) -> Option<String> {
    let slope = Slope::of(samples, |sample| sample.allocated)?;
    if slope.leaks() {
        return Some(format!("allocated memory: {slope}"));
    }
    let counted = counted(samples)?;
    let third = counted.len() / 3;
    let thirds =
        [&counted[..third], &counted[third..counted.len() - third], &counted[counted.len() - third..]];
    let rises = |name: &str, value: fn(&Sample) -> u64, most: u64| {
        let [first, second, last] = thirds.map(|third| median(third.iter().map(value).collect()));
        (first < second && second < last && last - first > most)
            .then(|| format!("{name}: medians of thirds {first}, {second}, {last}"))
    };
    rises("descriptors", |sample| sample.descriptors, 0)
        .or_else(|| rises("threads", |sample| sample.threads, POOL))
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 125 cycles one, as `make soak` takes them, by its number.
    fn samples(allocated: impl Fn(usize) -> f64) -> Vec<Sample> {
        let sample = |at: usize| Sample {
            cycles: at * 125,
            allocated: (4e6 + allocated(at)) as u64,
            private: 8 << 20,
            descriptors: 40,
            threads: 4,
        };
        (0..40).map(sample).collect()
    }

    /// A leak of so many bytes a cycle.
    fn leak(bytes: f64) -> impl Fn(usize) -> f64 {
        move |at| bytes * 125.0 * at as f64
    }

    /// Numbers up to 1 that say nothing, others for each seed.
    fn noise(seed: usize) -> impl Fn(usize) -> f64 {
        move |at| {
            let mixed = (at + 977 * seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 / (1 << 24) as f64
        }
    }

    #[test]
    fn a_leak_of_some_bytes_a_cycle_is_found_under_noise() {
        for seed in 0..200 {
            let (noise, leak) = (noise(seed), leak(100.0));
            let found = growth(&samples(|at| leak(at) + 60e3 * noise(at)));
            assert!(found.as_ref().is_some_and(|what| what.starts_with("allocated memory: +")), "{found:?}");
        }
        assert!(growth(&samples(leak(LEAK + 1.0))).is_some());
        assert_eq!(growth(&samples(leak(LEAK - 1.0))), None);
    }

    #[test]
    fn noise_is_no_leak() {
        for seed in 0..200 {
            let noise = noise(seed);
            assert_eq!(growth(&samples(|at| 100e3 * noise(at))), None);
        }
    }

    #[test]
    fn what_fills_up_jumps_or_comes_back_is_no_leak() {
        // The warm-up of a process, and a place that became larger.
        assert_eq!(growth(&samples(|at| 1e6 * at.min(8) as f64)), None);
        assert_eq!(growth(&samples(|at| if at < 30 { 0.0 } else { 3e5 })), None);
        assert_eq!(growth(&samples(|at| 1e6 * (1.0 - (-(at as f64) / 6.0).exp()))), None);
        // A saw, and single samples far away.
        assert_eq!(growth(&samples(|at| 5e4 * (at % 4) as f64)), None);
        assert_eq!(growth(&samples(|at| if at % 9 == 8 { 1e7 } else { 0.0 })), None);
        // Too few to say.
        assert_eq!(growth(&samples(leak(1000.0))[..13]), None);
    }

    #[test]
    fn one_descriptor_more_in_each_third_is_a_leak() {
        let mut samples = samples(|_| 0.0);
        for (at, sample) in samples.iter_mut().enumerate() {
            sample.descriptors += at as u64 / 7;
        }
        assert_eq!(growth(&samples).unwrap(), "descriptors: medians of thirds 42, 43, 45");
    }

    #[test]
    fn threads_that_do_not_end_are_a_leak_and_those_of_the_pool_are_none() {
        let samples = |cycles_a_thread: usize| {
            let mut samples = samples(|_| 0.0);
            for sample in &mut samples {
                sample.threads += (sample.cycles / cycles_a_thread) as u64;
            }
            samples
        };
        assert_eq!(growth(&samples(800)), None);
        assert_eq!(growth(&samples(125)).unwrap(), "threads: medians of thirds 21, 30, 39");
    }

    #[test]
    fn a_slope_has_its_interval() {
        let exact = Slope::of(&samples(leak(8.0)), |sample| sample.allocated).unwrap();
        assert_eq!(exact.to_string(), "+8.0 bytes a cycle (+8.0 to +8.0) by 27 samples over 3250 cycles");
        let noise = noise(1);
        let rough = Slope::of(&samples(|at| 1e5 * noise(at)), |sample| sample.allocated).unwrap();
        assert!(rough.between.0 < 0.0 && rough.between.1 > 0.0 && !rough.leaks(), "{rough}");
    }
}
