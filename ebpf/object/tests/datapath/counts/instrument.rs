//! Rewrites an object so that its programs count the instructions they execute.
//!
//! Each basic block gets a prologue that adds the block's number of instructions and of helper calls to two counters in a
//! map. The programs otherwise run as they are, with the kernel's own helpers and maps, so the counts are exact. An
//! instruction that loads 64 bits counts once; a branch on a constant of `.rodata` counts although the kernel removes it.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;

/// Bytes of an instruction.
const SIZE: usize = 8;

/// Instruction classes, in the lowest three bits of the opcode (linux/bpf.h).
mod class {
    pub(super) const LD: u8 = 0;
    pub(super) const LDX: u8 = 1;
    pub(super) const ST: u8 = 2;
    pub(super) const STX: u8 = 3;
    pub(super) const ALU: u8 = 4;
    pub(super) const JMP: u8 = 5;
    pub(super) const JMP32: u8 = 6;
    pub(super) const ALU64: u8 = 7;
}

/// Opcodes.
const LOAD_IMM64: u8 = 0x18;
const JUMP: u8 = 0x05;
const LONG_JUMP: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const STORE_REGISTER: u8 = 0x7b;
const LOAD_REGISTER: u8 = 0x79;
const MOVE_IMMEDIATE: u8 = 0xb7;
const ATOMIC_ADD: u8 = 0xdb;
const ADD_IMMEDIATE: u8 = 0x07;

/// The bit of an opcode that makes the source register the operand.
const USES_SOURCE: u8 = 0x08;
/// Source register of calls of other functions, and of loads of a map value's address.
const PSEUDO_CALL: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const TAIL_CALL_HELPER: i32 = 12;

const FRAME_POINTER: u8 = 10;
/// Bytes of a function's stack (`MAX_BPF_STACK`).
const STACK: i32 = 512;
/// Registers that a call changes, and those that keep their value.
const CALLER_SAVED: std::ops::Range<u8> = 0..6;
const CALLEE_SAVED: std::ops::Range<u8> = 6..10;

#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    dst: u8,
    src: u8,
    off: i16,
    imm: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        Self {
            code: bytes[0],
            dst: bytes[1] & 0xf,
            src: bytes[1] >> 4,
            off: i16::from_le_bytes([bytes[2], bytes[3]]),
            imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    fn bytes(self) -> [u8; SIZE] {
        let [off, imm] = [self.off.to_le_bytes().to_vec(), self.imm.to_le_bytes().to_vec()];
        [self.code, self.dst | self.src << 4, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
    }

    fn class(self) -> u8 {
        self.code & 7
    }

    fn is_jump(self) -> bool {
        matches!(self.class(), class::JMP | class::JMP32) && !matches!(self.code, CALL | EXIT)
    }

    fn is_local_call(self) -> bool {
        self.code == CALL && self.src == PSEUDO_CALL
    }

    fn is_helper_call(self) -> bool {
        self.code == CALL && self.src == 0
    }

    /// True if the next instruction may not run after this one.
    fn ends_block(self) -> bool {
        self.is_jump() || self.code == EXIT || self.is_helper_call() && self.imm == TAIL_CALL_HELPER
    }

    /// Registers it reads and writes, one bit each.
    fn registers(self) -> (u16, u16) {
        let (dst, src) = (1 << self.dst, 1 << self.src);
        let source = if self.code & USES_SOURCE != 0 { src } else { 0 };
        match self.class() {
            class::LD => (0, dst),
            class::LDX => (src, dst),
            class::ST => (dst, 0),
            // An atomic operation may return the value before.
            class::STX => (dst | src, 0),
            class::ALU | class::ALU64 => match self.code & 0xf0 {
                0xb0 => (source, dst),
                0x80 | 0xd0 => (dst, dst),
                _ => (dst | source, dst),
            },
            _ => match self.code {
                JUMP => (0, 0),
                // Of the five argument registers those that the callee takes.
                CALL => (0b11_1110, 0b11_1111),
                EXIT => (1, 0),
                _ => (dst | source, 0),
            },
        }
    }
}

/// A section of the object with instructions.
struct Code {
    instructions: Vec<Instruction>,
    /// Where functions begin, by instruction.
    functions: BTreeSet<usize>,
    /// Where blocks begin.
    leaders: BTreeSet<usize>,
    /// Instructions with a relocation: their operands are filled in by the loader.
    relocated: BTreeSet<usize>,
    /// Of each instruction, where its block's prologue, or else it itself, is afterwards.
    entry: Vec<usize>,
    /// And where it is.
    place: Vec<usize>,
    output: Vec<Instruction>,
}

/// Returns the object with counters: two 64-bit numbers, instructions and helper calls, in the only value of the array
/// `counters`.
pub(super) fn instrument(object: &[u8], counters: RawFd) -> Result<Vec<u8>> {
    let mut elf = Elf { bytes: object.to_vec() };
    let mut sections = BTreeMap::new();
    for index in elf.sections().filter(|index| elf.is_code(*index)) {
        let code = Code::read(&elf, index).with_context(|| format!("section {index}"))?;
        sections.insert(index, code);
    }
    for code in sections.values_mut() {
        code.expand(counters)?;
    }
    let entries: BTreeMap<usize, Vec<usize>> =
        sections.iter().map(|(index, code)| (*index, code.entry.clone())).collect();
    for (index, code) in &mut sections {
        code.retarget(&elf, *index, &entries)?;
        elf.replace(*index, &code.output);
    }
    elf.move_relocations(&sections)?;
    elf.move_symbols(&sections);
    elf.forget_lines()?;
    Ok(elf.bytes)
}

impl Code {
    fn read(elf: &Elf, index: usize) -> Result<Self> {
        let bytes = &elf.bytes[elf.data(index)];
        let instructions: Vec<_> = bytes.chunks_exact(SIZE).map(Instruction::read).collect();
        let functions = elf.functions(index).map(|value| value / SIZE).collect::<BTreeSet<_>>();
        let relocated = elf.relocations(index).map(|at| elf.u64(at) as usize / SIZE).collect();
        let mut leaders = functions.clone();
        for (at, it) in instructions.iter().enumerate() {
            ensure!(it.code != LONG_JUMP, "a jump over 32 bits at {at}");
            if it.is_jump() {
                leaders.insert(at.wrapping_add_signed(isize::from(it.off) + 1));
            }
            if it.ends_block() && at + 1 < instructions.len() {
                leaders.insert(at + 1);
            }
        }
        let (entry, place, output) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { instructions, functions, leaders, relocated, entry, place, output })
    }

    /// Writes every block behind its prologue.
    fn expand(&mut self, counters: RawFd) -> Result<()> {
        let live = self.live();
        let mut spill = 0;
        for (at, live) in live.into_iter().enumerate() {
            if self.functions.contains(&at) {
                spill = self.spill_slot(at)?;
            }
            self.entry.push(self.output.len());
            if self.leaders.contains(&at) {
                let prologue = self.prologue(at, live, spill, counters)?;
                self.output.extend(prologue);
            }
            self.place.push(self.output.len());
            self.output.push(self.instructions[at]);
        }
        Ok(())
    }

    fn prologue(&self, at: usize, live: u16, spill: i16, counters: RawFd) -> Result<Vec<Instruction>> {
        let end = self.leaders.range(at + 1..).next().copied().unwrap_or(self.instructions.len());
        let block = &self.instructions[at..end];
        // The second half of a load has no opcode.
        let executed = block.iter().filter(|it| it.code != 0).count() as i32;
        let helpers = block.iter().filter(|it| it.is_helper_call()).count() as i32;
        // Registers without a value cannot be spilled, so of the live ones only those that calls keep.
        let dead = CALLER_SAVED.chain(CALLEE_SAVED).filter(|register| live & 1 << register == 0);
        let kept = CALLEE_SAVED.filter(|register| live & 1 << register != 0);
        let mut scratch = dead.chain(kept);
        let (Some(address), Some(value)) = (scratch.next(), scratch.next()) else {
            bail!("no two registers at {at}");
        };
        let saved = [address, value].into_iter().zip([spill, spill - SIZE as i16]);
        let saved: Vec<_> = saved.filter(|(register, _)| live & 1 << register != 0).collect();
        let make = |code, dst, src, off, imm| Instruction { code, dst, src, off, imm };
        let mut out = Vec::new();
        out.extend(saved.iter().map(|(r, off)| make(STORE_REGISTER, FRAME_POINTER, *r, *off, 0)));
        out.push(make(LOAD_IMM64, address, PSEUDO_MAP_VALUE, 0, counters));
        out.push(make(0, 0, 0, 0, 0));
        for (count, off) in [(executed, 0), (helpers, SIZE as i16)] {
            if count > 0 {
                out.push(make(MOVE_IMMEDIATE, value, 0, 0, count));
                out.push(make(ATOMIC_ADD, address, value, off, 0));
            }
        }
        out.extend(saved.iter().map(|(r, off)| make(LOAD_REGISTER, *r, FRAME_POINTER, *off, 0)));
        Ok(out)
    }

    /// An unused slot of the stack of the function that begins at an instruction, with another one below.
    fn spill_slot(&self, begin: usize) -> Result<i16> {
        let end = self.functions.range(begin + 1..).next().copied().unwrap_or(self.instructions.len());
        let mut deepest = 0;
        for it in &self.instructions[begin..end] {
            let base = if it.class() == class::LDX { it.src } else { it.dst };
            let is_access = matches!(it.class(), class::LDX | class::ST | class::STX);
            if is_access && base == FRAME_POINTER {
                deepest = deepest.min(i32::from(it.off));
            } else if it.code == ADD_IMMEDIATE && (-STACK..0).contains(&it.imm) {
                // An address on the stack, or any other subtraction.
                deepest = deepest.min(it.imm);
            }
        }
        let slot = (deepest - SIZE as i32) & -(SIZE as i32);
        ensure!(slot - SIZE as i32 >= -STACK, "no place on the stack");
        Ok(slot as i16)
    }

    /// Registers that are read later, at each instruction.
    fn live(&self) -> Vec<u16> {
        let count = self.instructions.len();
        let mut live = vec![0u16; count + 1];
        loop {
            let mut changed = false;
            for at in (0..count).rev() {
                let it = self.instructions[at];
                let mut after = 0;
                if it.code != EXIT && it.code != JUMP {
                    after |= live[at + 1];
                }
                if it.is_jump() {
                    after |= live[at.wrapping_add_signed(isize::from(it.off) + 1)];
                }
                let (reads, writes) = it.registers();
                // The second half of a load is none of its own.
                let now = if it.code == 0 { after } else { after & !writes | reads };
                changed |= now != live[at];
                live[at] = now;
            }
            if !changed {
                live.truncate(count);
                return live;
            }
        }
    }

    /// Points jumps and calls to where their targets are now.
    fn retarget(&mut self, elf: &Elf, index: usize, entries: &BTreeMap<usize, Vec<usize>>) -> Result<()> {
        for at in 0..self.instructions.len() {
            let it = self.instructions[at];
            let place = self.place[at];
            if it.is_jump() {
                let target = self.entry[at.wrapping_add_signed(isize::from(it.off) + 1)];
                self.output[place].off = i16::try_from(target as i64 - place as i64 - 1)?;
            } else if it.is_local_call() && !self.relocated.contains(&at) {
                let target = self.entry[at.wrapping_add_signed(it.imm as isize + 1)];
                self.output[place].imm = i32::try_from(target as i64 - place as i64 - 1)?;
            }
        }
        // Calls of another section name it, and hold the function's place in it.
        for relocation in elf.relocations(index) {
            let at = elf.u64(relocation) as usize / SIZE;
            let it = self.instructions[at];
            let symbol = elf.symbol(elf.u32(relocation + 12) as usize)?;
            if let Some(entry) = entries.get(&elf.symbol_section(symbol))
                && elf.is_section_symbol(symbol)
            {
                ensure!(it.is_local_call(), "an address of code at {at}");
                self.output[self.place[at]].imm = entry[(it.imm + 1) as usize] as i32 - 1;
            }
        }
        Ok(())
    }
}

/// An ELF file of 64 bits, little-endian.
struct Elf {
    bytes: Vec<u8>,
}

/// Section types, flags and symbol types (elf.h).
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const REL: u32 = 9;
const EXECUTABLE: u64 = 4;
const SYMBOL_IS_SECTION: u8 = 3;
const SYMBOL_IS_FUNCTION: u8 = 2;
/// Bytes of a section header, of a relocation and of a symbol.
const SECTION_SIZE: usize = 64;
const RELOCATION_SIZE: usize = 16;
const SYMBOL_SIZE: usize = 24;

impl Elf {
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn set_u64(&mut self, at: usize, value: usize) {
        self.bytes[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }

    fn sections(&self) -> std::ops::Range<usize> {
        0..usize::from(self.u16(0x3c))
    }

    /// Where a section's header is.
    fn header(&self, index: usize) -> usize {
        self.u64(0x28) as usize + index * SECTION_SIZE
    }

    fn kind(&self, index: usize) -> u32 {
        self.u32(self.header(index) + 4)
    }

    fn data(&self, index: usize) -> std::ops::Range<usize> {
        let begin = self.u64(self.header(index) + 24) as usize;
        begin..begin + self.u64(self.header(index) + 32) as usize
    }

    fn is_code(&self, index: usize) -> bool {
        self.kind(index) == PROGBITS && self.u64(self.header(index) + 8) & EXECUTABLE != 0
    }

    /// Where the relocations of a section are.
    fn relocations(&self, section: usize) -> impl Iterator<Item = usize> {
        let ours = move |index: &usize| {
            self.kind(*index) == REL && self.u32(self.header(*index) + 44) as usize == section
        };
        let tables = self.sections().filter(ours).map(|index| self.data(index));
        tables.flat_map(|table| table.step_by(RELOCATION_SIZE))
    }

    /// Where all symbols are.
    fn symbols(&self) -> impl Iterator<Item = usize> + use<> {
        let table = self.sections().find(|index| self.kind(*index) == SYMTAB).map(|index| self.data(index));
        table.into_iter().flat_map(|table| table.step_by(SYMBOL_SIZE))
    }

    fn symbol(&self, index: usize) -> Result<usize> {
        self.symbols().nth(index).with_context(|| format!("no symbol {index}"))
    }

    fn symbol_section(&self, symbol: usize) -> usize {
        usize::from(self.u16(symbol + 6))
    }

    fn is_section_symbol(&self, symbol: usize) -> bool {
        self.bytes[symbol + 4] & 0xf == SYMBOL_IS_SECTION
    }

    /// Offsets of a section's functions.
    fn functions(&self, section: usize) -> impl Iterator<Item = usize> {
        let ours = move |symbol: &usize| {
            self.bytes[symbol + 4] & 0xf == SYMBOL_IS_FUNCTION && self.symbol_section(*symbol) == section
        };
        self.symbols().filter(ours).map(|symbol| self.u64(symbol + 8) as usize)
    }

    /// Other instructions in a section, at the end of the file.
    fn replace(&mut self, index: usize, instructions: &[Instruction]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(SIZE), 0);
        let (header, begin) = (self.header(index), self.bytes.len());
        self.bytes.extend(instructions.iter().flat_map(|it| it.bytes()));
        self.set_u64(header + 24, begin);
        self.set_u64(header + 32, instructions.len() * SIZE);
    }

    fn move_relocations(&mut self, sections: &BTreeMap<usize, Code>) -> Result<()> {
        for (index, code) in sections {
            for relocation in self.relocations(*index).collect::<Vec<_>>() {
                let at = self.u64(relocation) as usize / SIZE;
                self.set_u64(relocation, code.place.get(at).context("relocation")? * SIZE);
            }
        }
        Ok(())
    }

    fn move_symbols(&mut self, sections: &BTreeMap<usize, Code>) {
        for symbol in self.symbols().collect::<Vec<_>>() {
            let Some(code) = sections.get(&self.symbol_section(symbol)) else { continue };
            let (value, size) = (self.u64(symbol + 8) as usize / SIZE, self.u64(symbol + 16) as usize / SIZE);
            let end = |at: usize| code.entry.get(at).copied().unwrap_or(code.output.len());
            self.set_u64(symbol + 8, end(value) * SIZE);
            self.set_u64(symbol + 16, (end(value + size) - end(value)) * SIZE);
        }
    }

    /// Renames the section with positions of functions and lines, so that loaders do not see it: they are others now.
    fn forget_lines(&mut self) -> Result<()> {
        let names = self.data(usize::from(self.u16(0x3e))).start;
        for index in self.sections() {
            let header = self.header(index);
            let name = self.u32(header);
            if self.bytes[names + name as usize..].starts_with(b".BTF.ext\0") {
                // The rest of the name.
                self.set_u32(header, name + 1);
                return Ok(());
            }
        }
        bail!("no section .BTF.ext")
    }
}
