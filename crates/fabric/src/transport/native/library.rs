//! One end of a connection of libfabric or UCX: what `native/native.h` says, with the memory that it
//! needs.

use super::address::ADDRESS_MOST;
use super::slots::{OF_EACH, SLOT, Slots};
use crate::threads::without_signals;
use crate::transport::Broken;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Slots that are told of at once.
const DONE_MOST: usize = 16;

/// A library that brings networks of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// libfabric.
    Libfabric,
    /// UCX.
    Ucx,
}

/// What the C side calls an end.
#[repr(C)]
struct RawEnd {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawSlots {
    memory: *mut c_void,
    slot_size: usize,
    of_each: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Done {
    slot: u32,
    length: u64,
}

/// `native_library`.
#[repr(C)]
struct Table {
    open: unsafe extern "C" fn(*const c_char, *const RawSlots, *mut c_char, usize) -> *mut RawEnd,
    address: unsafe extern "C" fn(*mut RawEnd, *mut c_void, usize) -> c_long,
    connect: unsafe extern "C" fn(*mut RawEnd, *const c_void, usize) -> c_int,
    receive: unsafe extern "C" fn(*mut RawEnd, u32) -> c_int,
    send: unsafe extern "C" fn(*mut RawEnd, u32, usize) -> c_int,
    progress: unsafe extern "C" fn(*mut RawEnd, *mut Done, c_int) -> c_int,
    descriptor: unsafe extern "C" fn(*mut RawEnd) -> c_int,
    sleep: unsafe extern "C" fn(*mut RawEnd) -> c_int,
    close: unsafe extern "C" fn(*mut RawEnd),
    text: unsafe extern "C" fn(c_int) -> *const c_char,
}

unsafe extern "C" {
    #[cfg(feature = "libfabric")]
    static keeptime_native_libfabric: Table;
    #[cfg(feature = "ucx")]
    static keeptime_native_ucx: Table;
}

impl Library {
    /// Its name, which is that of the feature with which it is built in.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libfabric => "libfabric",
            Self::Ucx => "ucx",
        }
    }

    /// Whether this program has it.
    pub fn is_built_in(self) -> bool {
        self.table().is_some()
    }

    fn table(self) -> Option<&'static Table> {
        match self {
            // SAFETY: constants of the C side, of the type that its header gives them.
            #[cfg(feature = "libfabric")]
            Self::Libfabric => Some(unsafe { &keeptime_native_libfabric }),
            // SAFETY: as above.
            #[cfg(feature = "ucx")]
            Self::Ucx => Some(unsafe { &keeptime_native_ucx }),
            #[cfg(not(all(feature = "libfabric", feature = "ucx")))]
            _ => None,
        }
    }
}

/// One end. Frames are sent and read whole.
pub struct End {
    library: Library,
    table: &'static Table,
    raw: NonNull<RawEnd>,
    /// Where slots are. The library writes to those that it has, so nobody has a reference to all of it.
    memory: NonNull<[u8]>,
    slots: Slots,
    /// The other end is known.
    connected: bool,
    /// Slots with what is to be sent, and its length: it has no other end yet, or the library could not
    /// take them.
    waiting: VecDeque<(u32, usize)>,
    /// Slots to receive with that the library could not take yet.
    empty: VecDeque<u32>,
}

// SAFETY: the library's end may be used by any thread, by one at a time: what changes it takes `&mut`,
// and what does not leaves it as it is. The memory is the end's alone.
unsafe impl Send for End {}

impl End {
    /// A new end on the network of `address`, where the library chooses by that.
    ///
    /// # Errors
    /// If the library is not built in, or has no network.
    pub fn open(library: Library, address: IpAddr) -> io::Result<Self> {
        let name = library.name();
        let table = library.table().ok_or_else(|| {
            let why = format!("this program was built without {name} (the feature `{name}`)");
            io::Error::new(io::ErrorKind::Unsupported, why)
        })?;
        let bytes = vec![0_u8; 2 * OF_EACH * SLOT].into_boxed_slice();
        let memory = NonNull::from(Box::leak(bytes));
        let slots =
            RawSlots { memory: memory.cast().as_ptr(), slot_size: SLOT, of_each: OF_EACH as u32 };
        let address = CString::new(address.to_string())?;
        let mut why = [0_u8; 256];
        // The library may start threads of its own.
        // SAFETY: pointers to what lives during the call, but for the memory, which is freed after the end.
        let opened = without_signals(|| unsafe {
            (table.open)(address.as_ptr(), &raw const slots, why.as_mut_ptr().cast(), why.len())
        });
        let why = CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy();
        let Ok(Some(raw)) = opened.map(NonNull::new) else {
            // SAFETY: leaked above, and the library has not taken it.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
            return Err(io::Error::other(format!("{name}: {why}")));
        };
        if !why.is_empty() {
            tracing::warn!(%why, "{name}: not over the network that it thinks best");
        }
        let slots = Slots::new();
        let (connected, waiting, empty) = (false, VecDeque::new(), (0..OF_EACH as u32).collect());
        let mut end = Self { library, table, raw, memory, slots, connected, waiting, empty };
        end.receive_waiting().map_err(io::Error::other)?;
        Ok(end)
    }

    /// Which library it is of.
    pub fn library(&self) -> Library {
        self.library
    }

    /// How the other end calls this one.
    ///
    /// # Errors
    /// If the library does not say.
    pub fn address(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; ADDRESS_MOST];
        // SAFETY: as much room as is said.
        let length = unsafe {
            (self.table.address)(self.raw.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len())
        };
        let failed = |length| io::Error::other(self.error("telling its address", length as c_int));
        bytes.truncate(usize::try_from(length).map_err(|_| failed(length))?);
        Ok(bytes)
    }

    /// What becomes readable when there is something to do after [`Self::falls_asleep`]; none if the
    /// library has no such thing.
    ///
    /// # Errors
    /// If this process has no descriptors left.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        // SAFETY: asks the library.
        let fd = unsafe { (self.table.descriptor)(self.raw.as_ptr()) };
        if fd < 0 {
            return Ok(None);
        }
        // SAFETY: the library's, open as long as the end is.
        unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map(Some)
    }

    /// The other end is at `address`, which an end has told. Until then what is sent stays in its slots. Returns whether
    /// it can be reached: both ends may have chosen different networks, and then both hear of it.
    ///
    /// # Errors
    /// If it is no address of this library.
    pub fn connect(&mut self, address: &[u8]) -> Result<bool, Broken> {
        // SAFETY: as many bytes as is said.
        let result = without_signals(|| unsafe {
            (self.table.connect)(self.raw.as_ptr(), address.as_ptr().cast(), address.len())
        });
        let result = result.map_err(|error| Broken::Library(error.to_string()))?;
        self.connected = self.checked("connecting", result)? == 0;
        self.send_waiting()?;
        Ok(self.connected)
    }

    /// Whether the other end is known.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Sends a frame, if there is room. Returns whether there was.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn send(&mut self, head: &[u8], payload: &[u8]) -> Result<bool, Broken> {
        let length = head.len() + payload.len();
        assert!(length <= SLOT, "a frame of {length} bytes");
        let Some(slot) = self.slots.take() else { return Ok(false) };
        let place = self.place(slot);
        // SAFETY: `length` bytes of a slot that the library does not have.
        unsafe {
            place.copy_from_nonoverlapping(head.as_ptr(), head.len());
            place.add(head.len()).copy_from_nonoverlapping(payload.as_ptr(), payload.len());
        }
        self.waiting.push_back((slot, length));
        self.send_waiting()?;
        Ok(true)
    }

    /// Gives the library what it takes now.
    fn send_waiting(&mut self) -> Result<(), Broken> {
        while let Some((slot, length)) = self.waiting.front().copied()
            && self.connected
        {
            // SAFETY: a slot that the library does not have, until it is done with it.
            let result = unsafe { (self.table.send)(self.raw.as_ptr(), slot, length) };
            if self.checked("sending", result)? != 0 {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Takes back what the library was not given yet: its frames, one after another.
    pub fn take_waiting(&mut self) -> Vec<u8> {
        let mut frames = Vec::new();
        for (slot, length) in std::mem::take(&mut self.waiting) {
            // SAFETY: bytes of a slot that the library does not have, and that nobody writes to meanwhile.
            let frame = unsafe { std::slice::from_raw_parts(self.place(slot), length) };
            frames.extend_from_slice(frame);
            self.slots.done(slot, 0);
        }
        frames
    }

    /// What was sent first of all that has not been given back, if it has arrived.
    pub fn arrived(&self) -> Option<&[u8]> {
        let (slot, length) = self.slots.arrived()?;
        // SAFETY: bytes of a slot that the library does not have, at least until `give_back`, which takes
        // `&mut`.
        Some(unsafe { std::slice::from_raw_parts(self.place(slot), length) })
    }

    /// That was read: its slot can be filled again.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn give_back(&mut self) -> Result<(), Broken> {
        self.empty.extend(self.slots.give_back());
        self.receive_waiting()
    }

    /// Has the library work.
    ///
    /// # Errors
    /// If it says that something has gone wrong.
    pub fn progress(&mut self) -> Result<(), Broken> {
        let mut done = [Done { slot: 0, length: 0 }; DONE_MOST];
        // SAFETY: room for as many as is said.
        let result = unsafe {
            (self.table.progress)(self.raw.as_ptr(), done.as_mut_ptr(), DONE_MOST as c_int)
        };
        let told = self.checked("working", result)? as usize;
        done[..told].iter().for_each(|done| self.slots.done(done.slot, done.length));
        self.receive_waiting()?;
        self.send_waiting()
    }

    /// The caller is going to sleep. Returns false if it should not.
    pub fn falls_asleep(&mut self) -> bool {
        // SAFETY: asks the library.
        self.empty.is_empty() && unsafe { (self.table.sleep)(self.raw.as_ptr()) == 1 }
    }

    /// Whether there is room for a frame.
    pub fn has_room(&self) -> bool {
        self.slots.has_room()
    }

    /// Whether the library is done with all that was sent.
    pub fn is_all_sent(&self) -> bool {
        self.slots.is_all_sent()
    }

    /// Gives the library the slots to receive with that it takes now.
    fn receive_waiting(&mut self) -> Result<(), Broken> {
        while let Some(slot) = self.empty.front().copied() {
            // SAFETY: a slot that the library does not have, until it is done with it.
            let result = unsafe { (self.table.receive)(self.raw.as_ptr(), slot) };
            if self.checked("receiving", result)? != 0 {
                break;
            }
            self.empty.pop_front();
        }
        Ok(())
    }

    fn place(&self, slot: u32) -> *mut u8 {
        debug_assert!((slot as usize) < 2 * OF_EACH, "there is no slot {slot}");
        // SAFETY: inside the memory.
        unsafe { self.memory.cast::<u8>().as_ptr().add(slot as usize * SLOT) }
    }

    fn checked(&self, what: &str, result: c_int) -> Result<c_int, Broken> {
        if result < 0 { Err(Broken::Library(self.error(what, result))) } else { Ok(result) }
    }

    fn error(&self, what: &str, error: c_int) -> String {
        // SAFETY: a text that lasts.
        let text = unsafe { CStr::from_ptr((self.table.text)(error)) };
        format!("{}, {what}: {}", self.library.name(), text.to_string_lossy())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: nothing is asked of it after this, and only then the memory goes that it writes to.
        unsafe {
            (self.table.close)(self.raw.as_ptr());
            drop(Box::from_raw(self.memory.as_ptr()));
        }
    }
}
