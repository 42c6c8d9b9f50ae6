//! Packages of Debian that the machine's own apt sources do not name.
