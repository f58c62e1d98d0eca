//! Plain data: structs that consist only of their bytes.

/// A value without padding, pointers or forbidden bit patterns, so that it may cross the kernel boundary as bytes.
///
/// # Safety
/// The type is `#[repr(C)]` (or a primitive integer), every byte of it belongs to a field, every bit pattern is
/// a valid value, and its alignment is at most 8. (The macro `layout!` of this module checks sizes, offsets, padding.)
pub unsafe trait Pod: Copy + 'static {
    /// Returns the value with all bytes zero.
    #[inline(always)]
    fn zeroed() -> Self {
        // JUSTIFICATION: maps have zeroed entries; building one field by field would repeat every layout.
        // SAFETY: `Pod` promises that any bit pattern, so also zero, is valid.
        unsafe { core::mem::zeroed() }
    }

    /// Returns the bytes of the value, as stored in a map or an event.
    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        // JUSTIFICATION: system calls take bytes.
        // SAFETY: `Pod` promises that no byte of the value is padding; the slice lives as long as `self`.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// Reads a value from the start of `bytes`, at any alignment; `None` if there are too few.
    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // JUSTIFICATION: events and map values arrive as bytes.
        // SAFETY: there are enough bytes, the read is unaligned, and any bit pattern is valid.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

/// Checks a struct's size, the offset of each field and the absence of padding, then marks it [`Pod`].
macro_rules! layout {
    ($type:ty, $size:literal, { $($field:ident : $offset:literal),+ $(,)? }) => {
        const _: () = {
            const fn size_behind<F>(_: *const F) -> usize {
                size_of::<F>()
            }
            assert!(size_of::<$type>() == $size, concat!("size of ", stringify!($type)));
            assert!(align_of::<$type>() <= 8);
            let value = core::mem::MaybeUninit::<$type>::uninit();
            let pointer = value.as_ptr();
            let mut used = 0;
            $(
                assert!(
                    core::mem::offset_of!($type, $field) == $offset,
                    concat!("offset of ", stringify!($type), ".", stringify!($field))
                );
                // JUSTIFICATION: the only way to the size of a field without naming its type again.
                // SAFETY: the pointer is to a live local; nothing is read through it.
                used += size_behind(unsafe { &raw const (*pointer).$field });
            )+
            assert!(used == $size, concat!("padding in ", stringify!($type)));
        };
        // JUSTIFICATION: this implementation is the purpose of the checks above.
        // SAFETY: size, offsets and padding are checked above; the fields are integers and arrays of integers.
        unsafe impl $crate::Pod for $type {}
    };
}
pub(crate) use layout;

macro_rules! integers {
    ($($type:ty),+) => {
        $(
            // JUSTIFICATION: map keys and values that are single integers.
            // SAFETY: an integer has no padding and no invalid bit pattern.
            unsafe impl Pod for $type {}
        )+
    };
}
integers!(u8, u16, u32, u64, i32);

// JUSTIFICATION: map values that are arrays, such as per-CPU counters or Maglev tables.
// SAFETY: an array has no padding between elements that have none themselves.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}
