mod assembler;
mod receiver;
