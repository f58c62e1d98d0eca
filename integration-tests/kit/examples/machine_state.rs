//! Prints the state of the machine that tests must not touch, a fact a line, for a comparison of before and after.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

fn main() {
    for (name, value) in test_kit::MachineState::capture().facts() {
        println!("{name}\t{}", value.replace('\n', " "));
    }
}
