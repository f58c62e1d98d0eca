//! Another build of the agent, without a compiler: the binary with other instructions in its eBPF programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::binary;

/// Writes a copy of the agent's binary into a folder. Its programs have the same function by other instructions: two
/// consecutive loads of constants into registers are swapped. Returns its path.
///
/// # Panics
/// When the binary does not have the object in it as it is, or no two instructions can change places.
#[must_use]
pub fn other_build(folder: &Path) -> PathBuf {
    let object = datapath_object::datapath();
    let mut bytes = fs::read(binary("agent")).unwrap();
    // The object is aligned to 8 bytes.
    let at = (0..bytes.len() - object.len())
        .step_by(8)
        .find(|at| bytes[*at..*at + 8] == object[..8] && bytes[*at..*at + object.len()] == *object)
        .expect("the binary has the object of these sources");
    let changed = exchanged(object);
    bytes[at..at + object.len()].copy_from_slice(&changed);
    let path = folder.join("agent-of-another-build");
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The object with pairs of loads exchanged in every section of instructions.
fn exchanged(object: &[u8]) -> Vec<u8> {
    let number = |at: usize, bytes: usize| {
        object[at..at + bytes].iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    // Elf64_Ehdr: e_shoff, e_shentsize, e_shnum; Elf64_Shdr: sh_flags, sh_offset, sh_size.
    let (sections, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    const EXECINSTR: usize = 4;
    let mut changed = object.to_vec();
    let mut pairs = 0;
    for header in (0..count).map(|section| sections + section * size) {
        if number(header + 8, 8) & EXECINSTR != 0 {
            let (start, length) = (number(header + 0x18, 8), number(header + 0x20, 8));
            pairs += exchange(&mut changed[start..start + length]);
        }
    }
    assert!(pairs > 100, "{pairs} pairs of instructions");
    changed
}

/// Exchanges loads of constants that follow one another where nothing jumps between the two; how many pairs.
fn exchange(code: &mut [u8]) -> usize {
    let count = code.len() / 8;
    let mut targets = vec![false; count + 1];
    let mut is_second = vec![false; count];
    for at in 0..count {
        let instruction = &code[at * 8..at * 8 + 8];
        let (operation, class) = (instruction[0], instruction[0] & 7);
        // BPF_LD | BPF_IMM | BPF_DW takes two places.
        if operation == 0x18 && !is_second[at] && at + 1 < count {
            is_second[at + 1] = true;
        }
        // BPF_JMP and BPF_JMP32, but calls and exits; a long jump has its distance elsewhere.
        if !is_second[at] && (class == 5 || class == 6) && operation != 0x85 && operation != 0x95 {
            let distance = match operation {
                0x06 => i32::from_le_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]),
                _ => i32::from(i16::from_le_bytes([instruction[2], instruction[3]])),
            };
            let target = at as i64 + 1 + i64::from(distance);
            targets[usize::try_from(target).unwrap()] = true;
        }
    }
    let is_load = |code: &[u8], at: usize| {
        let instruction = &code[at * 8..at * 8 + 8];
        // BPF_MOV | BPF_K of 64 or 32 bits, no source register, no sign extension.
        matches!(instruction[0], 0xb7 | 0xb4) && instruction[1] >> 4 == 0 && instruction[2..4] == [0, 0]
    };
    let (mut at, mut pairs) = (0, 0);
    while at + 1 < count {
        let other_registers = code[at * 8 + 1] != code[at * 8 + 9];
        let free = !is_second[at] && !is_second[at + 1] && !targets[at + 1];
        if free && other_registers && is_load(code, at) && is_load(code, at + 1) {
            let (first, second) = code[at * 8..at * 8 + 16].split_at_mut(8);
            first.swap_with_slice(second);
            pairs += 1;
            at += 1;
        }
        at += 1;
    }
    pairs
}
