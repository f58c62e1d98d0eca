//! An observer whose function takes another item than its stream yields, and one on a value that is no stream.
//~ expected closure signature `fn(JobCx, u64) -> _`
//~ `Vec<u64>: Stream` is not satisfied
//~ required by a bound in `hive::JobGroup::observer`
//~ found closure signature `fn(JobCx, String) -> _`
use hive::prelude::*;

fn wrong_item(jobs: JobGroup) {
    let stream = futures::stream::iter([7_u64]);
    jobs.observer("routes", stream, |_, _item: String| async { Ok(()) }).add();
}

fn no_stream(jobs: JobGroup) {
    jobs.observer("routes", vec![7_u64], |_, _item: u64| async { Ok(()) }).add();
}

fn main() {
    invoke(wrong_item);
    invoke(no_stream);
}
