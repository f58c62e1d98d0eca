//! Prints the state of the machine that tests must not touch, one fact per line, so that the states before and after a
//! run can be compared.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

fn main() {
    for (name, value) in test_kit::MachineState::capture().facts() {
        println!("{name}\t{}", value.replace('\n', " "));
    }
}
