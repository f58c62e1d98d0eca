//! Memory, descriptors and threads of an agent over time, and whether they grow.
//!
//! Samples are taken at quiet moments only: no pods, no policies, no services, so that each is of the same state and a
//! difference is what the cycles in between have left behind. A process that has just started has not touched everything
//! yet, so the first fifth of its samples does not count. The rest is cut into thirds and their medians are compared: a
//! leak of so many bytes a cycle makes them rise one after the other, by two thirds of all that has leaked between the
//! first and the last sample, half of that each step; an allocator that keeps pages makes them jump once and stay, and
//! what fills up (addresses that rest, numbers that are kept for a while) makes steps that become smaller. They grow if
//! both steps go up, the second by more than half of the first, and both together are more than [`TOLERANCE`] for memory
//! or, for descriptors and threads, if there is any more.

use std::fs;

/// Kilobytes that memory may differ between two equal states, as an allocator keeps pages now here, now there.
pub const TOLERANCE: u64 = 768;

/// Fewer samples than this say nothing about growth.
const FEWEST: usize = 10;

/// A sample of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Cycles so far.
    pub cycles: usize,
    /// Private memory, in kB.
    pub anonymous: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// A sample of the process.
    ///
    /// # Panics
    /// When there is no such process.
    #[must_use]
    pub fn of(pid: u32, cycles: usize) -> Sample {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        Sample { cycles, anonymous: field("RssAnon:"), descriptors, threads: field("Threads:") }
    }
}

/// Why these samples are of something that grows; nothing if they are not, or are too few to say.
#[must_use]
pub fn growth(samples: &[Sample]) -> Option<String> {
    let counted = &samples[samples.len() / 5..];
    if counted.len() < FEWEST {
        return None;
    }
    let third = counted.len() / 3;
    let thirds =
        [&counted[..third], &counted[third..counted.len() - third], &counted[counted.len() - third..]];
    let rises = |name: &str, value: fn(&Sample) -> u64, tolerance: u64| {
        let [first, second, last] = thirds.map(|third| median(third.iter().map(value).collect()));
        let rises = first < second && second < last && last - first > tolerance;
        let rises = rises && 2 * (last - second) > second - first;
        rises.then(|| format!("{name}: medians of thirds {first}, {second}, {last}"))
    };
    rises("private memory in kB", |sample| sample.anonymous, TOLERANCE)
        .or_else(|| rises("descriptors", |sample| sample.descriptors, 0))
        .or_else(|| rises("threads", |sample| sample.threads, 0))
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(usize) -> usize) -> Vec<Sample> {
        let sample = |at: usize| Sample {
            cycles: at * 100,
            anonymous: memory(at) as u64,
            descriptors: 40,
            threads: 4,
        };
        (0..40).map(sample).collect()
    }

    #[test]
    fn a_leak_is_found_and_a_jump_is_none() {
        // 50 kB in 100 cycles, under a noise of 400 kB.
        let leak = growth(&samples(|at| 20_000 + 50 * at + (at * 7919) % 400)).unwrap();
        assert!(leak.starts_with("private memory in kB"), "{leak}");
        assert_eq!(growth(&samples(|at| 20_000 + (at * 7919) % 400)), None);
        assert_eq!(growth(&samples(|at| if at < 20 { 20_000 } else { 23_000 })), None);
        // What fills up: 7088, 8044, 8248 kB in a run at 27 pods a second.
        assert_eq!(
            growth(&samples(|at| 20_000 + (4000.0 * (1.0 - (-(at as f64) / 8.0).exp())) as usize)),
            None
        );
        // The warm-up of a process.
        assert_eq!(growth(&samples(|at| 20_000 + 1000 * at.min(8))), None);
        assert_eq!(growth(&samples(|at| 20_000 + 500 * at)[..9]), None);
    }

    #[test]
    fn one_descriptor_more_in_each_third_is_a_leak() {
        let mut samples = samples(|_| 20_000);
        for (at, sample) in samples.iter_mut().enumerate() {
            sample.descriptors += at as u64 / 10;
        }
        assert_eq!(growth(&samples).unwrap(), "descriptors: medians of thirds 41, 42, 43");
    }
}
