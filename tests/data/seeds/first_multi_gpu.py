from keras.models import Sequential
from keras.layers import Dense
from keras.utils import multi_gpu_model

model = Sequential()
model.add(Dense(64, input_dim=100))
model.add(Dense(64))
model.add(Dense(10, activation='softmax'))

# 将模型复制到两个GPU上
model = multi_gpu_model(model, gpus=2)
