//! The list of devices, and their attributes. Nothing is opened before a program opens a device.

use core::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::abi::{
    IBV_ATOMIC_HCA, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_NODE_CA, IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX,
    IBV_TRANSPORT_IB, ibv_device, ibv_device_attr,
};
use crate::error::{object, tell};
use crate::nic::Nic;
use spindrift_programs::{NicSettings, Settings, gid};

/// A device. Libraries of NIC vendors look behind `ibv_device` for what their own devices have there, and find zeros.
#[repr(C)]
pub(crate) struct DeviceBox {
    base: ibv_device,
    zeros: [u64; 256],
    pub(crate) settings: NicSettings,
    pub(crate) index: usize,
    nic: Mutex<Option<Arc<Nic>>>,
    /// Settings in place of those of the environment.
    own: Option<Settings>,
}

/// What the environment says, and the devices; read once.
pub(crate) struct Devices {
    pub(crate) settings: Settings,
    boxes: Vec<DeviceBox>,
}

fn devices() -> Option<&'static Devices> {
    static DEVICES: OnceLock<Option<Devices>> = OnceLock::new();
    let get = |name: &'static str| {
        // Tests keep to the loopback interface, and to a folder of their own.
        let of_tests = match name {
            "SPINDRIFT_PLANES" => Some("127.0.0.1".to_owned()),
            "SPINDRIFT_DEVICE_DIR" => {
                let folder = format!("spindrift-devices-{}", std::process::id());
                Some(std::env::temp_dir().join(folder).display().to_string())
            }
            _ => None,
        };
        of_tests.filter(|_| cfg!(test)).or_else(|| std::env::var(name).ok())
    };
    let read = || match Settings::from(get) {
        Ok(settings) => {
            let numbered = settings.nics.iter().cloned().enumerate();
            let boxes = numbered.map(|(index, nic)| DeviceBox::new(index, nic)).collect();
            Some(Devices { settings, boxes })
        }
        Err(error) => {
            tell("there is no device", &error);
            None
        }
    };
    DEVICES.get_or_init(read).as_ref()
}

/// All devices; none if the environment cannot be read.
pub(crate) fn all() -> &'static [DeviceBox] {
    devices().map_or(&[], |devices| &devices.boxes)
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

impl DeviceBox {
    pub(crate) fn new(index: usize, settings: NicSettings) -> Self {
        let name = &settings.name;
        let base = ibv_device {
            ops: [None, None],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: chars::<IBV_SYSFS_NAME_MAX>(name),
            dev_name: chars::<IBV_SYSFS_NAME_MAX>(&format!("uverbs{index}")),
            dev_path: chars::<IBV_SYSFS_PATH_MAX>(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
            ibdev_path: chars::<IBV_SYSFS_PATH_MAX>(&format!("/sys/class/infiniband/{name}")),
        };
        Self { base, zeros: [0; 256], settings, index, nic: Mutex::default(), own: None }
    }

    /// With settings of its own.
    #[cfg(test)]
    pub(crate) fn with(self, own: Settings) -> Self {
        Self { own: Some(own), ..self }
    }

    /// As the devices of a process: never freed. The leak checker finds it in a list.
    #[cfg(test)]
    pub(crate) fn kept(self) -> &'static Self {
        static KEPT: Mutex<Vec<&DeviceBox>> = Mutex::new(Vec::new());

        let device: &'static Self = Box::leak(Box::new(self));
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(device);
        device
    }

    /// The settings of the environment.
    #[cfg(test)]
    pub(crate) fn usual_settings() -> Settings {
        devices().map_or_else(|| unreachable!(), |devices| devices.settings.clone())
    }

    pub(crate) fn as_c(&self) -> *mut ibv_device {
        // Programs write nothing to it, and neither does this library.
        (&raw const self.base).cast_mut()
    }

    /// # Safety
    /// A device of [`ibv_get_device_list`].
    pub(crate) unsafe fn of<'a>(device: *mut ibv_device) -> &'a Self {
        // SAFETY: it is the first field of a box that is never freed.
        unsafe { &*device.cast::<Self>() }
    }

    /// The device in use: all contexts of a process share one.
    pub(crate) fn open(&self) -> Result<Arc<Nic>, c_int> {
        let mut nic = self.nic.lock().unwrap_or_else(PoisonError::into_inner);
        // That of a parent is of no use to the child of a fork.
        if let Some(nic) = nic.as_ref().filter(|nic| nic.pid == std::process::id()) {
            return Ok(Arc::clone(nic));
        }
        let settings = self.own.as_ref().map_or_else(|| Some(&devices()?.settings), Some);
        let opened = Nic::open(&self.settings, settings.ok_or(libc::ENODEV)?).map_err(|error| {
            tell(&format!("{} cannot be opened", self.settings.name), &error);
            error.code()
        })?;
        Ok(Arc::clone(nic.insert(opened)))
    }

    /// A number that is the same for each process of this host.
    pub(crate) fn guid(&self) -> u64 {
        gid::guid(self.index, &self.settings.planes)
    }
}

/// The device's attributes, as far as they are known before it is opened.
pub(crate) fn attributes(device: &DeviceBox, nic: &Nic) -> ibv_device_attr {
    let part_id = devices().map_or(0, |devices| devices.settings.part_id);
    let limits = &nic.verbs.config().limits;
    let most = c_int::MAX;
    ibv_device_attr {
        fw_ver: chars(env!("CARGO_PKG_VERSION")),
        node_guid: device.guid().to_be(),
        sys_image_guid: device.guid().to_be(),
        max_mr_size: u64::MAX >> 1,
        page_size_cap: !0xfff,
        vendor_id: 0,
        vendor_part_id: part_id,
        hw_ver: 0,
        max_qp: (limits.max_qps).min(crate::handshake::Number::QUEUE_PAIRS - 1) as c_int,
        max_qp_wr: limits.max_send_wr.min(limits.max_recv_wr).min(most as u32) as c_int,
        device_cap_flags: IBV_DEVICE_RC_RNR_NAK_GEN,
        max_sge: spindrift::work::MAX_SGE as c_int,
        max_sge_rd: spindrift::work::MAX_SGE as c_int,
        max_cq: 1 << 16,
        max_cqe: spindrift::verbs::MAX_CQ_DEPTH as c_int,
        max_mr: limits.max_regions.min(most as u32) as c_int,
        max_pd: 1 << 16,
        max_qp_rd_atom: 16,
        max_ee_rd_atom: 0,
        max_res_rd_atom: 1 << 16,
        max_qp_init_rd_atom: 16,
        max_ee_init_rd_atom: 0,
        atomic_cap: IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 0,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 1 << 16,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 1 << 16,
        max_srq_wr: limits.max_srq_wr.min(most as u32) as c_int,
        max_srq_sge: spindrift::work::MAX_SGE as c_int,
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
    }
}

/// # Safety
/// A place for a number, or null.
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    object(|| {
        let boxes = all();
        // SAFETY: memory for the pointers and a null, which `ibv_free_device_list` frees.
        let list = unsafe { libc::calloc(boxes.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        for (at, device) in boxes.iter().enumerate() {
            // SAFETY: within the list.
            unsafe { list.add(at).write(device.as_c()) };
        }
        if !count.is_null() {
            // SAFETY: as the caller promises.
            unsafe { count.write(boxes.len() as c_int) };
        }
        Ok(list)
    })
}

/// # Safety
/// A list of [`ibv_get_device_list`].
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(list.cast::<c_void>()) };
}

/// # Safety
/// A device of this library, or null.
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return null();
    }
    // SAFETY: as the caller promises.
    unsafe { (&raw const (*device).name).cast() }
}

/// # Safety
/// A device of this library.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { DeviceBox::of(device) }.guid().to_be()
}

/// # Safety
/// A device of this library.
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { DeviceBox::of(device) }.index as c_int
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// The kernel knows nothing of these devices.
pub(crate) extern "C" fn ibv_read_sysfs_file(
    _folder: *const c_char,
    _file: *const c_char,
    _buffer: *mut c_char,
    _size: usize,
) -> c_int {
    -1
}

/// A child of a fork has none of its parent's devices, whatever it calls.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`: registered memory is not pinned, so a fork does not hurt it.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// For functions that return an object which this library does not have.
pub(crate) extern "C" fn no_object() -> *mut c_void {
    crate::error::set_errno(libc::EOPNOTSUPP);
    null_mut()
}

/// For functions of which this library has nothing.
pub(crate) extern "C" fn not_supported() -> c_int {
    crate::error::set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// The same for those that return -1.
pub(crate) extern "C" fn failed() -> c_int {
    crate::error::set_errno(libc::EOPNOTSUPP);
    -1
}

/// For functions whose result nobody needs.
pub(crate) extern "C" fn nothing() {}
