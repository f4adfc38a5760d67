mod receiver;
