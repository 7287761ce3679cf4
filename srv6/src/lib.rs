//! SRv6 uSID carriers.
